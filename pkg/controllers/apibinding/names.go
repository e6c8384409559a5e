package apibinding

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/config"
)

// reserver keeps names.
type reserver interface {
	// Reserve keeps the names of schemas in a logical cluster for a binding, until
	// release is called. If one is in use it says so in conflict.
	Reserve(ctx context.Context, cluster logicalcluster.Name, binding string, schemas []types.UID) (release func(), conflict string, err error)
}

// names are those that a binding wants.
type names struct {
	cluster   logicalcluster.Name
	binding   *apisv1alpha2.APIBinding
	provider  logicalcluster.Name
	resources []apisv1alpha2.BoundAPIResource
	schemas   []types.UID
}

// reserve keeps names for a binding. The names of the system's own kinds are the servers': a
// binding to an export of root that offers these need have them only before other such
// bindings.
func reserve(ctx context.Context, r reserver, siblings func(logicalcluster.Name) []*apisv1alpha2.APIBinding, n names) (release func(), conflict string, err error) {
	ref := n.binding.Spec.Reference.Export
	if n.provider != core.RootCluster || ref == nil || !config.IsRootExport(ref.Name) {
		return r.Reserve(ctx, n.cluster, n.binding.Name, n.schemas)
	}
	for _, other := range siblings(n.cluster) {
		if other.Name == n.binding.Name {
			continue
		}
		for i := range n.resources {
			want := &n.resources[i]
			if slices.ContainsFunc(other.Status.BoundResources, func(b apisv1alpha2.BoundAPIResource) bool {
				return b.Group == want.Group && b.Resource == want.Resource
			}) {
				return nil, fmt.Sprintf("In group %q, %q is already in use by APIBinding %q", want.Group, want.Resource, other.Name), nil
			}
		}
	}
	return func() {}, "", nil
}
