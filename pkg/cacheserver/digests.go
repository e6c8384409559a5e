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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

// errUnread says that not all replicas were read yet.
var errUnread = errors.New("not all replicas were read yet, try again")

// digests are those of the replicas of all shards, as etcd has them, and of which data that is.
type digests struct {
	backend *storage.Backend
	counter *usage.Counter
	// full reports whether etcd is nearly full.
	full   func() bool
	dataID string
	// name is that of the cache server.
	name    string
	sizes   sizes
	decrypt func(key string, value []byte) ([]byte, error)
	// cached hears of the same.
	cached *cachedKinds

	mu sync.Mutex
	// tables are those of each shard, by resource; nil while everything is read.
	tables, reading map[string]map[string]*digest.Table[struct{}]
}

// newDigests returns the digests of what is below the prefix of an etcd. The counter has to run.
func newDigests(ctx context.Context, h *etcd.Handle, backend *storage.Backend, name string) (*digests, error) {
	id, err := h.DataID(ctx)
	if err != nil {
		return nil, err
	}
	following := context.WithoutCancel(ctx) // it outlives the start
	d := &digests{backend: backend, dataID: id, name: name, decrypt: func(key string, value []byte) ([]byte, error) {
		return backend.Decrypt(following, key, value)
	}}
	d.counter = usage.New(h.Client().Client, h.Prefix(), storage.ResourcePrefix(corev1.Resource("events")))
	d.full = d.counter.Full
	d.cached = newCachedKinds(d.decrypt)
	d.counter.Follow(usage.Follower{
		Begin: func() {
			d.begin()
			d.cached.begin()
		},
		Complete: func(revision uint64) {
			d.complete(revision)
			d.cached.complete()
		},
		Changed: func(key string, before, after []byte, revision uint64) {
			d.told(key, before, after, revision)
			d.cached.told(key, after)
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

func (d *digests) complete(uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tables = d.reading
}

// told is told of each value that etcd has, and of all changes.
func (d *digests) told(key string, before, after []byte, _ uint64) {
	at, ok := replicaAt(key)
	if !ok {
		return
	}
	d.sizes.told(at, before, after)
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

// hash returns the hash of a value. One that cannot be read is like none that a shard has.
func (d *digests) hash(stored, key string, value []byte) uint64 {
	plain, err := d.decrypt(stored, value)
	content := map[string]any{}
	if err == nil {
		err = utiljson.Unmarshal(plain, &content)
	}
	var hash uint64
	if err == nil {
		// The storage notes it, and no reader sees it.
		unstructured.RemoveNestedField(content, "metadata", "annotations", request.IdentityAnnotation)
		hash, err = replication.HashReplica(key, content)
	}
	if err != nil {
		klog.InfoS("A replica cannot be read", "key", stored, "err", err)
		return digest.HashOf(key, value)
	}
	return hash
}

// current returns the tables of a shard, with all that was written before it was called.
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

// prefixesOf returns how the keys begin of the replicas that a shard has, or had; false while that is
// read. What has an identity comes first: it is served as long as its cached resource is there.
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

// prefixOf returns how the keys of replicas begin.
func prefixOf(of replicas) string {
	resource := schema.ParseGroupResource(of.resource)
	name, identity, identified := strings.Cut(resource.Resource, ":")
	prefix := storage.ResourcePrefix(schema.GroupResource{Group: resource.Group, Resource: name}) + "/"
	if identified {
		prefix += ":" + identity + "/"
	}
	return prefix + of.shard + "/"
}

// Wrap answers GET …/shards/<shard>/digests[/<resource>.<group>[/<bucket>]].
func (d *digests) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shard, scoped := request.ShardFrom(r.Context())
		if !scoped || !ofDigests(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		answer, err := d.answer(r, shard)
		if err != nil {
			responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		body, err := json.Marshal(answer)
		if err != nil {
			responsewriters.InternalError(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // nobody listens any more, if it fails
	})
}

// ofDigests reports whether a path below a shard is about its digests.
func ofDigests(path string) bool {
	return path == digest.Path || strings.HasPrefix(path, digest.Path+"/")
}

func (d *digests) answer(r *http.Request, shard request.Shard) (*digest.Answer, error) {
	switch {
	case r.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "digests"}, r.Method)
	case shard.Wildcard:
		return nil, apierrors.NewBadRequest("digests are of one shard: name it")
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, digest.Path), "/")
	resource, bucketText, ofBucket := strings.Cut(rest, "/")
	bucket, err := strconv.Atoi(bucketText)
	if ofBucket && (err != nil || bucket < 0 || bucket >= digest.Buckets) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is no bucket: there are those from 0 to %d", bucketText, digest.Buckets-1))
	}
	tables, err := d.current(r.Context(), shard.Name)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error()) //nolint:forbidigo // shards retry later, with other work in between
	}
	answer := &digest.Answer{DataID: d.dataID, Name: d.name, Form: digest.Form, Full: d.full()}
	table := tables[resource]
	if table == nil {
		table = digest.NewTable[struct{}]()
	}
	switch {
	case resource == "":
		answer.Resources = make(map[string]digest.Root, len(tables))
		for resource, table := range tables {
			answer.Resources[resource] = table.Root()
		}
	case ofBucket:
		answer.Keys = table.Keys(bucket)
	default:
		answer.Buckets = make([]digest.Number, digest.Buckets)
		for i, sum := range table.Sums() {
			answer.Buckets[i] = digest.Number(sum)
		}
	}
	return answer, nil
}
