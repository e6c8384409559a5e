package apikinds

import (
	"context"
	"fmt"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/cel/environment"

	apirules "github.com/shardplane/shardplane/pkg/apis"
	compiled "github.com/shardplane/shardplane/pkg/apis/conversions"
	"github.com/shardplane/shardplane/pkg/request"
)

// checkConversion wants the rules of an APIConversion to fit the schema of its name, if
// there is that schema already. Where it comes later, the binding tells.
func (p *binder) checkConversion(ctx context.Context, a admission.Attributes, object, old *unstructured.Unstructured) error {
	if old != nil && equality.Semantic.DeepEqual(object.Object["spec"], old.Object["spec"]) {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	schema, err := p.config.Schema(ctx, cluster, object.GetName())
	if err != nil {
		return request.Unavailable(fmt.Sprintf("cannot read the APIResourceSchema %s, try again: %v", object.GetName(), err))
	}
	if schema == nil {
		return nil
	}
	var conversion apisv1alpha1.APIConversion
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &conversion); err != nil {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Invalid(field.NewPath("spec"), a.GetName(), err.Error())})
	}
	crd, errs := apirules.Definition(schema)
	if len(errs) > 0 {
		return nil // what is bound says so
	}
	_, errs = compiled.Compile(&crd.Spec, &conversion.Spec, environment.NewExpressions)
	if errs = append(errs, compiled.ValidateSelectable(&crd.Spec, &conversion.Spec)...); len(errs) > 0 {
		return request.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
	}
	return nil
}
