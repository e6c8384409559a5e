package apibinding

import (
	"context"
	"fmt"
	"slices"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/client"
)

// reserve keeps the names for a binding that it does not have yet. The names of the system's
// own kinds are the servers': a binding to an export of root that offers these need have
// them only before other such bindings.
func (r *reconciler) reserve(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding, p plan) (release func(), conflict string, err error) {
	if p.provider != core.RootCluster || binding.Spec.Reference.Export == nil || !config.IsRootExport(binding.Spec.Reference.Export.Name) {
		return r.apis.Reserve(ctx, key.Cluster, key.Name, p.added)
	}
	for _, other := range r.siblings(key.Cluster) {
		if other.Name == key.Name {
			continue
		}
		for i := range p.wanted {
			want := &p.wanted[i]
			if slices.ContainsFunc(other.Status.BoundResources, func(b apisv1alpha2.BoundAPIResource) bool {
				return b.Group == want.Group && b.Resource == want.Resource
			}) {
				return nil, fmt.Sprintf("In group %q, %q is already in use by APIBinding %q", want.Group, want.Resource, other.Name), nil
			}
		}
	}
	return func() {}, "", nil
}
