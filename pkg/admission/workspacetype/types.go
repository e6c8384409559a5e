package workspacetype

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/kcp-dev/sdk/apis/core"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

var workspaceTypes = tenancyv1alpha1.Resource("workspacetypes")

// checkType refuses a WorkspaceType that kcp refuses: names that mean something else, and
// references to other types that do not say where these are. What the type said before it may
// go on to say.
func checkType(ctx context.Context, a admission.Attributes) error {
	now, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || now == nil {
		return nil
	}
	if a.GetOperation() == admission.Create {
		if err := checkTypeName(ctx, now.GetName()); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	spec := specOf(now)
	var before map[string]any
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && old != nil {
		before = specOf(old)
	}
	const child = "defaultChildWorkspaceType"
	if spec[child] != nil && !hasPath(spec[child]) && !reflect.DeepEqual(spec[child], before[child]) {
		return admission.NewForbidden(a, pathless("spec."+child))
	}
	for _, name := range []string{"limitAllowedChildren", "limitAllowedParents"} {
		if selector, is := spec[name].(map[string]any); is && !reflect.DeepEqual(selector, before[name]) {
			old, _ := before[name].(map[string]any)
			if err := checkSelector(a, name, selector, old); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkTypeName(ctx context.Context, name string) error {
	if slices.Contains(tenancyv1alpha1.WorkspaceTypeReservedNames(), name) {
		return fmt.Errorf("metadata.name %s is reserved: choose another one", name)
	}
	if cluster, _ := request.ClusterFrom(ctx); name == core.RootCluster.String() && cluster.Name != core.RootCluster {
		return errors.New("metadata.name root is that of the type of the logical cluster root: choose another one")
	}
	return nil
}

// checkSelector refuses a selector of types that was another one before.
func checkSelector(a admission.Attributes, name string, selector, before map[string]any) error {
	_, none := selector["none"]
	types, some := selector["types"].([]any)
	if none == some {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("spec", name), selector, "must have exactly one of none and types"),
		})
	}
	known, _ := before["types"].([]any)
	for i, ref := range types {
		if !hasPath(ref) && !slices.ContainsFunc(known, func(k any) bool { return reflect.DeepEqual(k, ref) }) {
			return admission.NewForbidden(a, pathless(fmt.Sprintf("spec.%s.types[%d]", name, i)))
		}
	}
	return nil
}

func pathless(field string) error {
	return fmt.Errorf("%s.path must be set: name the workspace that has the type", field)
}

// hasPath reports whether a reference to a type says where that is.
func hasPath(ref any) bool {
	fields, _ := ref.(map[string]any)
	path, _ := fields["path"].(string)
	return path != ""
}

func specOf(wt *unstructured.Unstructured) map[string]any {
	spec, _ := wt.Object["spec"].(map[string]any)
	return spec
}
