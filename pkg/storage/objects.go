package storage

import (
	"context"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// remember keeps the hub of a resource for those who ask for it by the prefix of its keys,
// until forget is called.
func (b *Backend) remember(root string, h *hub.Hub) (forget func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hubs[root] = h
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.hubs[root] == h {
			delete(b.hubs, root)
		}
	}
}

// Hub returns the hub of the open storage whose keys have a prefix, such as "/core/secrets/",
// or nil if there is none.
func (b *Backend) Hub(prefix string) *hub.Hub {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hubs[prefix]
}

// Revision asks a quorum of etcd for its revision: whatever was acknowledged before is not newer.
func (b *Backend) Revision(ctx context.Context) (uint64, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+"/health")
	if err != nil {
		return 0, fmt.Errorf("etcd does not tell its revision: %w", err)
	}
	return uint64(response.Header.Revision), nil //nolint:gosec // revisions are positive
}

// Exists asks a quorum of etcd whether a key, as hubs have it, is there.
func (b *Backend) Exists(ctx context.Context, key string) (bool, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+key, clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("etcd does not tell of one key: %w", err)
	}
	return response.Count > 0, nil
}

// Key returns the key of an object below the prefix of its resource, as hubs have it.
func Key(prefix, identity string, cluster logicalcluster.Name, namespace, name string) string {
	prefix = keyspace{root: prefix}.prefix(tenant{identity: identity, cluster: cluster})
	if namespace != "" {
		prefix += namespace + "/"
	}
	return prefix + name
}

// Place is what the key of an object tells of it.
type Place struct {
	Identity        string
	Cluster         logicalcluster.Name
	Namespace, Name string
}

// PlaceOf is the reverse of Key. It is false for keys of objects that are in no logical cluster.
func PlaceOf(prefix, key string) (p Place, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return Place{}, false
	}
	if identity, marked := strings.CutPrefix(rest, identityMark); marked {
		p.Identity, rest, _ = strings.Cut(identity, "/")
	}
	cluster, rest, ok := strings.Cut(rest, "/")
	if !ok || cluster == nowhere {
		return Place{}, false
	}
	p.Cluster = logicalcluster.Name(cluster)
	if p.Namespace, p.Name, ok = strings.Cut(rest, "/"); !ok {
		p.Namespace, p.Name = "", rest
	}
	return p, true
}
