package bindings

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// Create stores a binding with its status and finalizers in one write, without a request, and returns the stored
// object. It is used for bindings that are created in thousands of logical clusters. The error is AlreadyExists if a
// binding with this name exists.
func (x *Index) Create(ctx context.Context, objects Objects, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(binding)
	if err != nil {
		return nil, fmt.Errorf("encoding the APIBinding %s: %w", binding.Name, err)
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetGroupVersionKind(apisv1alpha2.SchemeGroupVersion.WithKind("APIBinding"))
	stored, err := objects.Create(ctx, cluster, kinds.APIBindings.GroupResource(), u)
	if err != nil {
		return nil, err
	}
	return bindingIn(stored)
}

// Like returns the resources that a new binding to an export will bind, if another binding of the shard has bound
// everything that the export currently offers. Then only the names must be checked. The schemas are kept until
// release is called.
func (x *Index) Like(ctx context.Context, export *apisv1alpha2.APIExport) (resources []apisv1alpha2.BoundAPIResource, release func(), ok bool) {
	l, release := x.acquireComplete(client.KeyOf(export))
	if l == nil {
		return nil, nil, false
	}
	for i := range export.Spec.Resources {
		offered := &export.Spec.Resources[i]
		all := l.content.Status.BoundResources
		at := slices.IndexFunc(all, func(b apisv1alpha2.BoundAPIResource) bool {
			return b.Group == offered.Group && b.Resource == offered.Name
		})
		if at < 0 || (len(all[at].StorageVersions) == 0) == storedHere(offered) || all[at].Schema.Name != offered.Schema || all[at].Schema.IdentityHash != export.Status.IdentityHash {
			release()
			return nil, nil, false
		}
		schema, err := x.schemas.get(ctx, types.UID(all[at].Schema.UID))
		if err != nil {
			release()
			return nil, nil, false // reading the original returns the error
		}
		bound := *all[at].DeepCopy()
		if storedHere(offered) {
			bound.StorageVersions = []string{schema.StoredVersion()}
		}
		resources = append(resources, bound)
	}
	return resources, release, true
}
