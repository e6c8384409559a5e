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

// Create stores a binding with its status and finalizers, in one write and without a
// request, and returns it as it is stored. It is for what is made in each of thousands of
// logical clusters: nobody but the server can make a binding so. The error is AlreadyExists
// if there is one of the name.
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

// Like returns what a new binding to an export binds, if another binding of the shard has
// bound all that the export offers now: then nothing has to be looked at but the names. The
// schemas are kept until release is called.
func (x *Index) Like(ctx context.Context, export *apisv1alpha2.APIExport) (resources []apisv1alpha2.BoundAPIResource, release func(), ok bool) {
	l, release := x.holdComplete(client.KeyOf(export))
	if l == nil {
		return nil, nil, false
	}
	for i := range export.Spec.Resources {
		offered := &export.Spec.Resources[i]
		all := l.said.Status.BoundResources
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
			return nil, nil, false // whoever reads the original tells why
		}
		bound := *all[at].DeepCopy()
		if storedHere(offered) {
			bound.StorageVersions = []string{schema.StoredVersion()}
		}
		resources = append(resources, bound)
	}
	return resources, release, true
}
