package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// remember keeps the hub of a resource for hubOf, until forget is called.
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

// hubOf returns the hub of the open storage whose keys have a prefix, such as "/core/secrets/",
// or nil if there is none.
func (b *Backend) hubOf(prefix string) *hub.Hub {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hubs[prefix]
}

// LastChange returns the resource version of the latest change of an object below the prefix of a resource, such as
// "/core/secrets/", up to a version or later.
func (b *Backend) LastChange(ctx context.Context, prefix string, version uint64) (uint64, error) {
	h := b.hubOf(prefix)
	if h == nil {
		return 0, request.Unavailable(fmt.Sprintf("the storage of %s is not open yet, try again", prefix))
	}
	return h.LastChange(ctx, version)
}

// Revision asks a quorum of etcd for its revision: whatever was acknowledged before is not newer.
func (b *Backend) Revision(ctx context.Context) (uint64, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+"/health")
	if err != nil {
		return 0, fmt.Errorf("etcd does not tell its revision: %w", err)
	}
	return uint64(response.Header.Revision), nil //nolint:gosec // revisions are positive
}

// maxOps is how many operations etcd takes in a transaction, by default.
const maxOps = 128

// Any asks a quorum of etcd whether there are keys of objects with each of some prefixes, such as
// "/core/secrets/cluster/".
func (b *Backend) Any(ctx context.Context, prefixes []string) ([]bool, error) {
	found := make([]bool, 0, len(prefixes))
	for some := range slices.Chunk(prefixes, maxOps) {
		ops := make([]clientv3.Op, len(some))
		for i, prefix := range some {
			ops[i] = clientv3.OpGet(b.cfg.Prefix+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		}
		response, err := b.cfg.Client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("etcd does not tell what there is: %w", err)
		}
		for _, r := range response.Responses {
			found = append(found, r.GetResponseRange().Count > 0)
		}
	}
	return found, nil
}

// Keys returns keys of objects that have a prefix, such as "/core/secrets/cluster/", but not more
// than so many.
func (b *Backend) Keys(ctx context.Context, prefix string, most int64) ([]string, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(most))
	if err != nil {
		return nil, fmt.Errorf("etcd does not tell the keys below %s: %w", prefix, err)
	}
	keys := make([]string, len(response.Kvs))
	for i, kv := range response.Kvs {
		keys[i] = strings.TrimPrefix(string(kv.Key), b.cfg.Prefix)
	}
	return keys, nil
}

// DeleteAll deletes the objects of a logical cluster whose keys have a prefix before its name, such as
// "/core/secrets/", without a look at what they are, but not more than so many. Each is a write of
// its own, so that no watch resumes between two. It returns how many it deleted.
func (b *Backend) DeleteAll(ctx context.Context, before string, cluster logicalcluster.Name, most int64) (deleted int64, err error) {
	if !request.ValidClusterName(cluster) {
		return 0, fmt.Errorf("invalid name of a logical cluster: %q", cluster)
	}
	keys, err := b.Keys(ctx, Key(before, "", cluster, "", ""), most)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		response, err := b.cfg.Client.KV.Delete(ctx, b.cfg.Prefix+key)
		if err != nil {
			return deleted, fmt.Errorf("etcd does not delete %s: %w", key, err)
		}
		deleted += response.Deleted
	}
	return deleted, nil
}

// freePage is how many objects DeleteFree reads at a time.
const freePage = 100

// DeleteFree deletes the objects whose keys have a prefix, such as "/core/secrets/cluster/", and that no
// finalizer holds. Each is a write of its own, so that no watch resumes between two, and of the version
// that was read. It reports whether others may be there: what is held, cannot be read, or was written
// meanwhile.
func (b *Backend) DeleteFree(ctx context.Context, prefix string) (others bool, err error) {
	next := b.cfg.Prefix + prefix
	end := clientv3.GetPrefixRangeEnd(next)
	for {
		page, err := b.cfg.Client.KV.Get(ctx, next, clientv3.WithRange(end), clientv3.WithLimit(freePage))
		if err != nil {
			return true, fmt.Errorf("etcd does not tell what is below %s: %w", prefix, err)
		}
		for _, kv := range page.Kvs {
			key := string(kv.Key)
			header, err := b.Header(ctx, strings.TrimPrefix(key, b.cfg.Prefix), kv.Value)
			if err != nil || len(header.Finalizers) > 0 {
				others = true // an error is told to who lists it
				continue
			}
			asRead := clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
			done, err := b.cfg.Client.Txn(ctx).If(asRead).Then(clientv3.OpDelete(key)).Commit()
			if err != nil {
				return true, fmt.Errorf("etcd does not delete what is below %s: %w", prefix, err)
			}
			others = others || !done.Succeeded
		}
		if !page.More {
			return others, nil
		}
		next = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
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
type ObjectKey struct {
	Identity        string
	Cluster         logicalcluster.Name
	Namespace, Name string
}

// PlaceOf is the reverse of Key. It is false for keys of objects that are in no logical cluster.
func ObjectKeyOf(prefix, key string) (p ObjectKey, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return ObjectKey{}, false
	}
	if identity, marked := strings.CutPrefix(rest, identityMark); marked {
		p.Identity, rest, _ = strings.Cut(identity, "/")
	}
	cluster, rest, ok := strings.Cut(rest, "/")
	if !ok || cluster == nowhere {
		return ObjectKey{}, false
	}
	p.Cluster = logicalcluster.Name(cluster)
	if p.Namespace, p.Name, ok = strings.Cut(rest, "/"); !ok {
		p.Namespace, p.Name = "", rest
	}
	return p, true
}
