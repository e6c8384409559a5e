package storage

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// registerHub registers the hub of a resource for hubOf, until forget is called.
func (b *Backend) registerHub(root string, h *hub.Hub) (forget func()) {
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

// hubOf returns the hub of the open storage with a key prefix, e.g. "/core/secrets/", or nil.
func (b *Backend) hubOf(prefix string) *hub.Hub {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hubs[prefix]
}

// LastChange returns the resource version of the last change below a resource's prefix, e.g.
// "/core/secrets/". The hub must have seen the given version.
func (b *Backend) LastChange(ctx context.Context, prefix string, version uint64) (uint64, error) {
	h := b.hubOf(prefix)
	if h == nil {
		return 0, request.Unavailable(fmt.Sprintf("the storage of %s is not open yet, try again", prefix))
	}
	return h.LastChange(ctx, version)
}

// Revision returns the current revision from a quorum of etcd.
func (b *Backend) Revision(ctx context.Context) (uint64, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+"/health")
	if err != nil {
		return 0, fmt.Errorf("reading the revision of etcd: %w", err)
	}
	return uint64(response.Header.Revision), nil //nolint:gosec // revisions are positive
}

// maxOps is etcd's default limit of operations in a transaction.
const maxOps = 128

// Any reports for each prefix, e.g. "/core/secrets/<cluster>/", whether keys exist, from a quorum of etcd.
func (b *Backend) Any(ctx context.Context, prefixes []string) ([]bool, error) {
	found := make([]bool, 0, len(prefixes))
	for some := range slices.Chunk(prefixes, maxOps) {
		ops := make([]clientv3.Op, len(some))
		for i, prefix := range some {
			ops[i] = clientv3.OpGet(b.cfg.Prefix+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		}
		response, err := b.cfg.Client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("counting keys in etcd: %w", err)
		}
		for _, r := range response.Responses {
			found = append(found, r.GetResponseRange().Count > 0)
		}
	}
	return found, nil
}

// Keys returns at most limit keys of objects with a prefix, e.g. "/core/secrets/<cluster>/".
func (b *Backend) Keys(ctx context.Context, prefix string, limit int64) ([]string, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(limit))
	if err != nil {
		return nil, fmt.Errorf("listing keys below %s in etcd: %w", prefix, err)
	}
	keys := make([]string, len(response.Kvs))
	for i, kv := range response.Kvs {
		keys[i] = strings.TrimPrefix(string(kv.Key), b.cfg.Prefix)
	}
	return keys, nil
}

// DeleteAll deletes at most limit objects of a logical cluster without decoding them, and returns their number.
// before is the key prefix up to the cluster, e.g. "/core/secrets/". Deletions are separate writes, so that no watch
// resumes between two of one revision.
func (b *Backend) DeleteAll(ctx context.Context, before string, cluster logicalcluster.Name, limit int64) (deleted int64, err error) {
	if !request.ValidClusterName(cluster) {
		return 0, fmt.Errorf("invalid name of a logical cluster: %q", cluster)
	}
	keys, err := b.Keys(ctx, Key(before, "", cluster, "", ""), limit)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		response, err := b.cfg.Client.KV.Delete(ctx, b.cfg.Prefix+key)
		if err != nil {
			return deleted, fmt.Errorf("deleting %s from etcd: %w", key, err)
		}
		deleted += response.Deleted
	}
	return deleted, nil
}

const freePage = 100

// DeleteFree deletes the objects without finalizers that have a key prefix, e.g. "/core/secrets/<cluster>/", in
// separate writes like DeleteAll. It reports whether other objects may remain because they have finalizers, cannot
// be read, or have changed in the meantime.
func (b *Backend) DeleteFree(ctx context.Context, prefix string) (others bool, err error) {
	next := b.cfg.Prefix + prefix
	end := clientv3.GetPrefixRangeEnd(next)
	for {
		page, err := b.cfg.Client.KV.Get(ctx, next, clientv3.WithRange(end), clientv3.WithLimit(freePage))
		if err != nil {
			return true, fmt.Errorf("listing objects below %s in etcd: %w", prefix, err)
		}
		for _, kv := range page.Kvs {
			key := string(kv.Key)
			header, err := b.Header(ctx, strings.TrimPrefix(key, b.cfg.Prefix), kv.Value)
			if err != nil || len(header.Finalizers) > 0 {
				others = true // lists report the error
				continue
			}
			asRead := clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
			done, err := b.cfg.Client.Txn(ctx).If(asRead).Then(clientv3.OpDelete(key)).Commit()
			if err != nil {
				return true, fmt.Errorf("deleting %s from etcd: %w", key, err)
			}
			others = others || !done.Succeeded
		}
		if !page.More {
			return others, nil
		}
		next = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// Key returns the key of an object, below the prefix of its resource.
func Key(prefix, identity string, cluster logicalcluster.Name, namespace, name string) string {
	prefix = keyspace{root: prefix}.prefix(tenant{identity: identity, cluster: cluster})
	if namespace != "" {
		prefix += namespace + "/"
	}
	return prefix + name
}

// ObjectKey contains the segments of an object's key.
type ObjectKey struct {
	Identity        string
	Cluster         logicalcluster.Name
	Namespace, Name string
}

// ObjectKeyOf is the reverse of Key. It returns false if the key has no logical cluster.
func ObjectKeyOf(prefix, key string) (p ObjectKey, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return ObjectKey{}, false
	}
	if identity, marked := strings.CutPrefix(rest, identityPrefix); marked {
		p.Identity, rest, _ = strings.Cut(identity, "/")
	}
	cluster, rest, ok := strings.Cut(rest, "/")
	if !ok || cluster == noCluster {
		return ObjectKey{}, false
	}
	p.Cluster = logicalcluster.Name(cluster)
	if p.Namespace, p.Name, ok = strings.Cut(rest, "/"); !ok {
		p.Namespace, p.Name = "", rest
	}
	return p, true
}

// Header contains the metadata of an object that concern ownership and deletion.
type Header struct {
	UID types.UID `json:"uid"`
	// ResourceVersion is empty if the header was decoded without the revision of its key.
	ResourceVersion   string                  `json:"-"`
	DeletionTimestamp *metav1.Time            `json:"deletionTimestamp"`
	Finalizers        []string                `json:"finalizers"`
	OwnerReferences   []metav1.OwnerReference `json:"ownerReferences"`
}

var protobufPrefix = []byte("k8s\x00")

// Plain reports whether a JSON value has neither owners nor a deletion timestamp, without decoding it.
func Plain(stored []byte) bool {
	return len(stored) > 0 && stored[0] == '{' &&
		!bytes.Contains(stored, []byte(`"ownerReferences"`)) && !bytes.Contains(stored, []byte(`"deletionTimestamp"`))
}

// Header decodes the header of a stored value. The key lacks the backend's prefix.
func (b *Backend) Header(ctx context.Context, key string, stored []byte) (h Header, err error) {
	if stored, err = b.Decrypt(ctx, key, stored); err != nil {
		return Header{}, err
	}
	encoded, isProtobuf := bytes.CutPrefix(stored, protobufPrefix)
	if !isProtobuf {
		var object struct {
			Metadata Header `json:"metadata"`
		}
		if err := json.Unmarshal(stored, &object); err != nil {
			return Header{}, fmt.Errorf("decoding %s: %w", key, err)
		}
		return object.Metadata, nil
	}
	// All kinds have their metadata in the same protobuf field.
	var unknown runtime.Unknown
	var object metav1.PartialObjectMetadata
	if err = unknown.Unmarshal(encoded); err == nil {
		err = object.Unmarshal(unknown.Raw)
	}
	if err != nil {
		return Header{}, fmt.Errorf("decoding %s: %w", key, err)
	}
	return headerOf(&object)
}

// Decrypt decrypts a stored value. The key lacks the backend's prefix.
func (b *Backend) Decrypt(ctx context.Context, key string, stored []byte) ([]byte, error) {
	if b.cfg.Transformers == nil {
		return stored, nil
	}
	transformer := b.cfg.Transformers.TransformerForResource(ResourceOf(key))
	plain, _, err := transformer.TransformFromStorage(ctx, stored, value.DefaultContext(b.cfg.Prefix+key))
	if err != nil {
		return nil, fmt.Errorf("decrypting %s: %w", key, err)
	}
	return plain, nil
}

func headerOf(obj runtime.Object) (Header, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return Header{}, err
	}
	return Header{
		UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(),
		DeletionTimestamp: m.GetDeletionTimestamp(), Finalizers: m.GetFinalizers(), OwnerReferences: m.GetOwnerReferences(),
	}, nil
}

// ReadHeader reads the header of an object from a quorum of etcd. It is the zero value if there is no such object.
func (b *Backend) ReadHeader(ctx context.Context, key string) (Header, error) {
	response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+key)
	if err != nil {
		return Header{}, fmt.Errorf("reading %s from etcd: %w", key, err)
	}
	if len(response.Kvs) == 0 {
		return Header{}, nil
	}
	h, err := b.Header(ctx, key, response.Kvs[0].Value)
	h.ResourceVersion = strconv.FormatInt(response.Kvs[0].ModRevision, 10)
	return h, err
}

// CachedHeader returns the header of an object at a revision or later, from the hub or as ReadHeader does.
func (b *Backend) CachedHeader(ctx context.Context, key string, revision uint64) (Header, error) {
	if h := b.hubOf(ResourcePrefixOf(key)); h != nil {
		switch obj, known := h.GetAt(ctx, key, revision); {
		case known && obj == nil:
			return Header{}, nil
		case known:
			return headerOf(obj)
		}
	}
	return b.ReadHeader(ctx, key)
}

// ResourcePrefixOf returns the resource's prefix of an object's key, e.g. "/core/secrets/".
func ResourcePrefixOf(key string) string {
	group := strings.IndexByte(key[1:], '/') + 1
	return key[:group+2+strings.IndexByte(key[group+1:], '/')]
}

// ResourceOf returns the resource of an object's key, without a suffix ":…" that distinguishes some objects.
func ResourceOf(key string) schema.GroupResource {
	group, name, _ := strings.Cut(strings.Trim(ResourcePrefixOf(key), "/"), "/")
	name, _, _ = strings.Cut(name, ":")
	if group == coreGroup {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: name}
}
