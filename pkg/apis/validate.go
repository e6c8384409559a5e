package apis

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/sdk/apis/apis"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// stored and other are the versions of APIExports and APIBindings.
var (
	stored = apisv1alpha2.SchemeGroupVersion.String()
	other  = apisv1alpha1.SchemeGroupVersion.String()
)

// Validate validates an object of apis.kcp.io in any version, and its change if old is not nil. old must have the
// same version. Objects of other groups are valid. Objects that cannot be converted are invalid, because they would
// break lists in the other version for all logical clusters.
func Validate(ctx context.Context, object, old *unstructured.Unstructured) field.ErrorList {
	if object.GroupVersionKind().Group != apis.GroupName {
		return nil
	}
	switch object.GetKind() {
	case "APIResourceSchema":
		return validateAs(object, old, func(s *APIResourceSchema) field.ErrorList { return ValidateSchema(ctx, s) }, ValidateSchemaUpdate)
	case "APIExport":
		return validateVersions(object, old, checkV1alpha1Export, ValidateExport, ValidateExportUpdate)
	case "APIBinding":
		return validateVersions(object, old, checkV1alpha1Binding, ValidateBinding, ValidateBindingUpdate)
	case "APIExportEndpointSlice":
		return validateAs(object, old, ValidateEndpointSlice, ValidateEndpointSliceUpdate)
	case "APIConversion":
		return validateAs(object, old, ValidateConversion, ValidateConversionUpdate)
	default:
		return nil
	}
}

func validateAs[T any](object, old *unstructured.Unstructured, created func(*T) field.ErrorList, updated func(object, old *T) field.ErrorList) field.ErrorList {
	typed, err := as[T](object)
	if err != nil {
		return field.ErrorList{field.Invalid(spec, object.GetName(), err.Error())}
	}
	if old == nil {
		return created(typed)
	}
	before, err := as[T](old)
	if err != nil {
		return created(typed) // an update may fix an unreadable object
	}
	return updated(typed, before)
}

// validateVersions validates an object in its storage version. first validates an object of the other version
// before that.
func validateVersions[First, T any](object, old *unstructured.Unstructured, first func(*First) field.ErrorList, created func(*T) field.ErrorList, updated func(object, old *T) field.ErrorList) field.ErrorList {
	if errs := checkLengths(object); len(errs) > 0 {
		return errs
	}
	if object.GetAPIVersion() == other {
		if errs := validateAs(object, nil, first, nil); len(errs) > 0 {
			return errs
		}
	}
	toStore, err := Convert(object, stored)
	if err != nil {
		return notConvertible(object, err)
	}
	if _, err := Convert(toStore, other); err != nil {
		return notConvertible(object, err)
	}
	if errs := apivalidation.ValidateAnnotations(toStore.GetAnnotations(), annotationsPath); len(errs) > 0 {
		return errs
	}
	var before *unstructured.Unstructured
	if old != nil {
		if before, err = Convert(old, stored); err != nil {
			before = nil // an update may fix an unreadable object
		}
	}
	return validateAs(toStore, before, created, updated)
}

// checkLengths limits the lengths of lists before conversions compare each item with each item of another list.
func checkLengths(object *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	for _, name := range []string{"resources", "latestResourceSchemas", "permissionClaims"} {
		value, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", name)
		items, _ := value.([]any)
		if len(items) > MaxItems {
			errs = append(errs, field.TooMany(spec.Child(name), len(items), MaxItems))
			continue
		}
		for i, item := range items {
			claim, _ := item.(map[string]any)
			if verbs, _ := claim["verbs"].([]any); len(verbs) > maxVerbs {
				errs = append(errs, field.TooMany(spec.Child(name).Index(i).Child("verbs"), len(verbs), maxVerbs))
			}
		}
	}
	return errs
}

func notConvertible(object *unstructured.Unstructured, err error) field.ErrorList {
	return field.ErrorList{field.Invalid(annotationsPath, object.GetName(), err.Error()+": fix the annotation, or remove it")}
}

// checkV1alpha1Export rejects values that the conversion of an APIExport would lose.
func checkV1alpha1Export(export *apisv1alpha1.APIExport) field.ErrorList {
	var errs field.ErrorList
	path := spec.Child("latestResourceSchemas")
	seen := map[schema.GroupResource]bool{}
	for i, name := range export.Spec.LatestResourceSchemas {
		parsed, err := ParseSchemaName(name)
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), name, err.Error()))
			continue
		}
		if seen[parsed.Resource] {
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
		seen[parsed.Resource] = true
	}
	return append(errs, checkRemembered(&export.ObjectMeta, apisv1alpha2.PermissionClaimsAnnotation, export.Spec.PermissionClaims, func(c *apisv1alpha2.PermissionClaim) *apisv1alpha2.PermissionClaim { return c })...)
}

// checkV1alpha1Binding rejects values that the conversion of an APIBinding would lose.
func checkV1alpha1Binding(binding *apisv1alpha1.APIBinding) field.ErrorList {
	claims := make([]apisv1alpha1.PermissionClaim, 0, len(binding.Spec.PermissionClaims))
	for i := range binding.Spec.PermissionClaims {
		claims = append(claims, binding.Spec.PermissionClaims[i].PermissionClaim)
	}
	return checkRemembered(&binding.ObjectMeta, apisv1alpha2.AcceptablePermissionClaimsAnnotation, claims, func(c *apisv1alpha2.AcceptablePermissionClaim) *apisv1alpha2.PermissionClaim {
		return &c.PermissionClaim
	})
}

// checkRemembered rejects claims in an annotation that are not among those of the object.
func checkRemembered[T any](meta *metav1.ObjectMeta, annotation string, claims []apisv1alpha1.PermissionClaim, claimOf func(*T) *apisv1alpha2.PermissionClaim) field.ErrorList {
	path := annotationsPath.Key(annotation)
	remembered, err := recall[T](meta, annotation)
	if err != nil {
		return field.ErrorList{field.Invalid(path, meta.Annotations[annotation], err.Error())}
	}
	if len(remembered) > MaxItems {
		return field.ErrorList{field.TooMany(path, len(remembered), MaxItems)}
	}
	var errs field.ErrorList
	for i := range remembered {
		claim := claimOf(&remembered[i])
		if !slices.ContainsFunc(claims, func(c apisv1alpha1.PermissionClaim) bool {
			return c.Group == claim.Group && c.Resource == claim.Resource && c.IdentityHash == claim.IdentityHash
		}) {
			errs = append(errs, field.Invalid(path, fmt.Sprint(claim), "it is not in spec.permissionClaims: add it there, or remove it from the annotation"))
		}
	}
	return errs
}
