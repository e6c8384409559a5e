package shard

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/reconcile/purge"
)

var _ purge.Stored = (*Server)(nil).stored

// stored says which resources may have objects: those of which etcd has some, and those that
// nobody knows to be there.
func (s *Server) stored(ctx context.Context, cluster logicalcluster.Name, namespace string, resources []schema.GroupResource) ([]bool, error) {
	may := make([]bool, len(resources))
	prefixes, at := make([]string, 0, len(resources)), make([]int, 0, len(resources))
	for i, resource := range resources {
		prefix, known, err := s.customResources.KeysOf(ctx, cluster, namespace, resource)
		if err != nil {
			return nil, err
		}
		if may[i] = !known; known {
			prefixes, at = append(prefixes, prefix), append(at, i)
		}
	}
	found, err := s.backend.Any(ctx, prefixes)
	if err != nil {
		return nil, err
	}
	for i := range found {
		may[at[i]] = found[i]
	}
	return may, nil
}
