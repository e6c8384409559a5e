package admissionregistration

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/request/patterns"
)

var (
	metadata = field.NewPath("metadata")
	spec     = field.NewPath("spec")
)

// strategy is the common strategy of these resources: a generation that counts changes of the desired state, and
// validation of changes. Unchanged objects are not validated again, because the rules may have become stricter.
func strategy[T resource.Object](wanted func(T) any, validate func(T) field.ErrorList) resource.Strategy[T] {
	return resource.Strategy[T]{
		PrepareForCreate: func(_ context.Context, obj T) { obj.SetGeneration(1) },
		PrepareForUpdate: func(_ context.Context, obj, old T) {
			obj.SetGeneration(old.GetGeneration())
			if !equality.Semantic.DeepEqual(wanted(obj), wanted(old)) {
				obj.SetGeneration(old.GetGeneration() + 1)
			}
		},
		Validate: func(_ context.Context, obj T) field.ErrorList {
			return append(validateMeta(obj), validate(obj)...)
		},
		ValidateUpdate: func(_ context.Context, obj, old T) field.ErrorList {
			errs := apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, metadata)
			if equality.Semantic.DeepEqual(wanted(obj), wanted(old)) {
				return errs
			}
			return append(errs, patterns.WithoutFormer(validate(obj), func() field.ErrorList { return validate(old) })...)
		},
	}
}

func validateMeta(obj metav1.Object) field.ErrorList {
	return apivalidation.ValidateObjectMetaAccessor(obj, false, apivalidation.NameIsDNSSubdomain, metadata)
}

func ptrDefault[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}
