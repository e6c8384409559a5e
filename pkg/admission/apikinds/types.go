package apikinds

import (
	"context"
	"fmt"
	"slices"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// maxDefaultBindings is how many exports a workspace type may bind by itself. All of them
// are bound in each workspace of the type, and of each type that extends it.
const maxDefaultBindings = 64

var workspaceTypes = schema.GroupResource{Group: tenancyv1alpha1.SchemeGroupVersion.Group, Resource: "workspacetypes"}

// checkType lets those write workspace types who may bind what these bind in workspaces,
// which the system does: of an existing type, what is new. The exports need not exist yet.
func (p *binder) checkType(ctx context.Context, a admission.Attributes) error {
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	refs, err := defaultBindingsOf(a.GetObject())
	if err != nil {
		return err
	}
	var before []tenancyv1alpha1.APIExportReference
	if a.GetOperation() == admission.Update {
		if before, err = defaultBindingsOf(a.GetOldObject()); err != nil {
			return err
		}
	}
	if errs := checkDefaultBindings(refs, before); len(errs) > 0 {
		return request.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
	}
	if u := a.GetUserInfo(); u == nil || identity.Administers(ctx, u) {
		return nil
	}
	for _, ref := range refs {
		if slices.Contains(before, ref) {
			continue
		}
		if _, _, err := p.mayBindOne(ctx, a, cluster, ref.Path, ref.Export); err != nil {
			return err
		}
	}
	return nil
}

// checkDefaultBindings returns what is wrong with the exports that a type names, but for those that it named before.
func checkDefaultBindings(refs, before []tenancyv1alpha1.APIExportReference) field.ErrorList {
	at := field.NewPath("spec", "defaultAPIBindings")
	if len(refs) > max(maxDefaultBindings, len(before)) {
		return field.ErrorList{field.TooMany(at, len(refs), maxDefaultBindings)}
	}
	var errs field.ErrorList
	for i, ref := range refs {
		if slices.Contains(before, ref) {
			continue
		}
		for _, message := range validation.IsDNS1123Subdomain(ref.Export) {
			errs = append(errs, field.Invalid(at.Index(i).Child("export"), ref.Export, message))
		}
	}
	return errs
}

func defaultBindingsOf(object runtime.Object) ([]tenancyv1alpha1.APIExportReference, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok || u == nil {
		return nil, nil
	}
	wt := &tenancyv1alpha1.WorkspaceType{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, wt); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the WorkspaceType: %v", err))
	}
	return wt.Spec.DefaultAPIBindings, nil
}
