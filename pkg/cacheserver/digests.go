package cacheserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

var errUnread = errors.New("not all replicas are loaded yet, try again")

// digests contains the digests of the replicas of all shards in etcd.
type digests struct {
	backend *storage.Backend
	counter *usage.Counter
	full    func() bool
	dataID  string
	// name is the name of the cache server.
	name    string
	sizes   sizes
	decrypt func(key string, value []byte) ([]byte, error)
	// cached receives the same events.
	cached *cachedKinds

	mu sync.Mutex
	// tables are the tables of each shard by resource, nil until the first resync is complete. reading are those of the
	// running resync.
	tables, reading map[string]map[string]*digest.Table[struct{}]
}

// newDigests returns the digests of the objects below the prefix of an etcd. The counter must be run by the caller.
func newDigests(ctx context.Context, h *etcd.Handle, backend *storage.Backend, name string) (*digests, error) {
	id, err := h.DataID(ctx)
	if err != nil {
		return nil, err
	}
	following := context.WithoutCancel(ctx) // it outlives the start
	d := &digests{backend: backend, dataID: id, name: name, decrypt: func(key string, value []byte) ([]byte, error) {
		return backend.Decrypt(following, key, value)
	}}
	d.counter = usage.NewUsageMeter(h.Client().Client, h.Prefix(), storage.ResourcePrefix(corev1.Resource("events")))
	d.full = d.counter.Full
	d.cached = newCachedKinds(d.decrypt)
	d.counter.Follow(usage.Follower{
		Begin: func() {
			d.begin()
			d.cached.begin()
		},
		Complete: func(uint64) {
			d.complete()
			d.cached.complete()
		},
		Changed: func(key string, before, after []byte, _ uint64) {
			d.observe(key, before, after)
			d.cached.observe(key, after)
		},
	})
	return d, nil
}

func (d *digests) begin() {
	d.sizes.begin()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tables, d.reading = nil, map[string]map[string]*digest.Table[struct{}]{}
}

func (d *digests) complete() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tables = d.reading
}

// observe handles each stored value and each change.
func (d *digests) observe(key string, before, after []byte) {
	at, ok := replicaAt(key)
	if !ok {
		return
	}
	d.sizes.observe(at, before, after)
	d.mu.Lock()
	of := d.reading[at.shard]
	if of == nil {
		of = map[string]*digest.Table[struct{}]{}
		d.reading[at.shard] = of
	}
	table := of[at.resource]
	if table == nil {
		table = digest.NewTable[struct{}]()
		of[at.resource] = table
	}
	d.mu.Unlock()
	if after == nil {
		table.Remove(at.key)
		return
	}
	table.Set(at.key, d.hash(key, at.key, after), struct{}{})
}

// hash returns the hash of a value. The hash of an unreadable value differs from that of any replica.
func (d *digests) hash(stored, key string, value []byte) uint64 {
	plain, err := d.decrypt(stored, value)
	content := map[string]any{}
	if err == nil {
		err = utiljson.Unmarshal(plain, &content)
	}
	var hash uint64
	if err == nil {
		// The storage adds it, and removes it when the object is read.
		unstructured.RemoveNestedField(content, "metadata", "annotations", request.IdentityAnnotation)
		hash, err = replication.HashReplica(key, content)
	}
	if err != nil {
		klog.InfoS("A replica cannot be read", "key", stored, "err", err)
		return digest.HashOf(key, value)
	}
	return hash
}

// current returns the tables of a shard, including all writes before the call.
func (d *digests) current(ctx context.Context, shard string) (map[string]*digest.Table[struct{}], error) {
	revision, err := d.backend.Revision(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.counter.WaitFor(ctx, revision); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tables == nil {
		return nil, errUnread
	}
	return maps.Clone(d.tables[shard]), nil
}

// prefixesOf returns the key prefixes of the replicas of a shard, or false during a resync. Resources with an identity
// come first, because they are only served as long as their CachedResource exists.
func (d *digests) prefixesOf(shard string) ([]string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tables == nil {
		return nil, false
	}
	var identified, others []string
	for resource := range d.tables[shard] {
		prefix := prefixOf(replicas{shard, resource})
		if strings.Contains(resource, ":") {
			identified = append(identified, prefix)
		} else {
			others = append(others, prefix)
		}
	}
	return append(identified, others...), true
}

func prefixOf(of replicas) string {
	resource := schema.ParseGroupResource(of.resource)
	name, identity, identified := strings.Cut(resource.Resource, ":")
	prefix := storage.ResourcePrefix(schema.GroupResource{Group: resource.Group, Resource: name}) + "/"
	if identified {
		prefix += ":" + identity + "/"
	}
	return prefix + of.shard + "/"
}

// Wrap serves GET …/shards/<shard>/digests[/<resource>.<group>[/<bucket>]].
func (d *digests) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shard, scoped := request.ShardFrom(r.Context())
		if !scoped || !ofDigests(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		response, err := d.response(r, shard)
		if err != nil {
			writeError(w, r, err)
			return
		}
		body, err := json.Marshal(response)
		if err != nil {
			responsewriters.InternalError(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // fails only if the client has disconnected
	})
}

func ofDigests(path string) bool {
	return path == digest.Path || strings.HasPrefix(path, digest.Path+"/")
}

func (d *digests) response(r *http.Request, shard request.Shard) (*digest.Response, error) {
	switch {
	case r.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "digests"}, r.Method)
	case shard.Wildcard:
		return nil, apierrors.NewBadRequest("digests are only served for one shard: specify its name")
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, digest.Path), "/")
	resource, bucketText, ofBucket := strings.Cut(rest, "/")
	bucket, err := strconv.Atoi(bucketText)
	if ofBucket && (err != nil || bucket < 0 || bucket >= digest.Buckets) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a bucket: must be between 0 and %d", bucketText, digest.Buckets-1))
	}
	tables, err := d.current(r.Context(), shard.Name)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error()) //nolint:forbidigo // shards retry later and do other work meanwhile
	}
	response := &digest.Response{DataID: d.dataID, Name: d.name, Form: digest.Form, Full: d.full()}
	table := tables[resource]
	if table == nil {
		table = digest.NewTable[struct{}]()
	}
	switch {
	case resource == "":
		response.Resources = make(map[string]digest.Root, len(tables))
		for resource, table := range tables {
			response.Resources[resource] = table.Root()
		}
	case ofBucket:
		response.Keys = table.Keys(bucket)
	default:
		response.Buckets = make([]digest.Number, digest.Buckets)
		for i, sum := range table.Sums() {
			response.Buckets[i] = digest.Number(sum)
		}
	}
	return response, nil
}

// rejectIfFull rejects new replicas while etcd is nearly full. The remaining space is needed for updates and deletions, e.g. of
// permissions, and for checkpoints.
func (d *digests) rejectIfFull(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, scoped := request.ShardFrom(r.Context())
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !scoped || !ok || !info.IsResourceRequest || info.Verb != "create" || info.APIGroup == cachekinds.SchemeGroupVersion.Group || !d.full() {
			next.ServeHTTP(w, r)
			return
		}
		writeError(w, r, request.StatusError(http.StatusInsufficientStorage, metav1.StatusReasonUnknown,
			fmt.Sprintf("%s cannot be stored: the etcd of the cache server is nearly full, so new replicas are rejected: the administrator must free storage", info.Resource)))
	})
}
