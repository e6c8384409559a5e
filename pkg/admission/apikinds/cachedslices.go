package apikinds

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

// cachedSlices are the endpoint slices of cached resources, with the field of their spec that
// names the cached resource.
var cachedSlices = map[string]string{
	"cachedresourceendpointslices":        "cachedResource",
	"clustercachedresourceendpointslices": "clusterCachedResource",
}

// checkCachedSlice lets those make an endpoint slice of a cached resource who may bind the
// export, whose consumers it tells of. The cached resource has to be beside it: what another
// logical cluster has replicated is not the slice's to show.
func (p *binder) checkCachedSlice(ctx context.Context, a admission.Attributes, of string) error {
	object, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || a.GetSubresource() != "" || a.GetOperation() != admission.Create {
		return nil // the definition says that references do not change
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	path, _, _ := unstructured.NestedString(object.Object, "spec", of, "path")
	if canonical, known := p.config.PathOf(cluster); path != "" && path != cluster.String() && (!known || path != canonical) {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("spec", of, "path"), path, "must be the path of this workspace, or left out: make the slice where the cached resource is"),
		})
	}
	for _, fields := range [][]string{{"spec", of, "name"}, {"spec", "export", "name"}} {
		if name, _, _ := unstructured.NestedString(object.Object, fields...); name == "" {
			return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Required(field.NewPath(fields[0], fields[1:]...), "name the cached resource that the slice is for, and the APIExport that offers it")})
		}
	}
	_, err = p.mayBind(ctx, a, object, "spec", "export")
	return err
}
