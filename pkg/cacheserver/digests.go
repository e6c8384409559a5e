package cacheserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/instruments"
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
	logger  klog.Logger
	backend *storage.Backend
	counter *usage.Counter
	full    func() bool
	dataID  string
	// name is the name of the cache server.
	name    string
	decrypt func(key string, value []byte) ([]byte, error)
	// cached receives the same events.
	cached *cachedKinds

	mu sync.Mutex
	// tables may be incomplete during a resync.
	tables   map[replicas]*table
	complete bool
}

type table struct {
	digest.Table[struct{}]

	bytes int64 // in etcd, without history
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
	}, logger: klog.FromContext(ctx)}
	d.counter = usage.NewUsageMeter(h.Client().Client, h.Prefix(), storage.ResourcePrefix(corev1.Resource("events")))
	d.full = d.counter.Full
	d.cached = newCachedKinds(ctx, d.decrypt)
	d.counter.Follow(usage.Follower{
		Begin: func() {
			d.begin()
			d.cached.begin()
		},
		Complete: func(uint64) {
			d.completed()
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
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tables, d.complete = map[replicas]*table{}, false
}

func (d *digests) completed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.complete = true
}

// observe handles each stored value and each change.
func (d *digests) observe(key string, before, after []byte) {
	at, ok := replicaAt(key)
	if !ok {
		return
	}
	d.mu.Lock()
	of := d.tables[at.replicas]
	if of == nil {
		of = &table{}
		d.tables[at.replicas] = of
	}
	of.bytes += int64(len(after) - len(before))
	d.mu.Unlock()
	if after == nil {
		of.Remove(at.key)
		return
	}
	of.Set(at.key, d.hash(key, at.key, after), struct{}{})
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
		d.logger.Info("A replica cannot be read", "key", stored, "err", err)
		return digest.HashOf(key, value)
	}
	return hash
}

// current returns the tables of a shard, including all writes before the call.
func (d *digests) current(ctx context.Context, shard string) (map[string]*table, error) {
	revision, err := d.backend.Revision(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.counter.WaitFor(ctx, revision); err != nil {
		return nil, err
	}
	tables, complete := d.of(shard)
	if !complete {
		return nil, errUnread
	}
	return tables, nil
}

func (d *digests) of(shard string) (tables map[string]*table, complete bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	tables = map[string]*table{}
	for of, table := range d.tables {
		if of.shard == shard {
			tables[of.resource] = table
		}
	}
	return tables, d.complete
}

// prefixesOf returns the key prefixes of the replicas of a shard, or false during a resync. Resources with an identity
// come first, because they are only served as long as their CachedResource exists.
func (d *digests) prefixesOf(shard string) ([]string, bool) {
	tables, complete := d.of(shard)
	var identified, others []string
	for resource := range tables {
		prefix := prefixOf(replicas{shard, resource})
		if strings.Contains(resource, ":") {
			identified = append(identified, prefix)
		} else {
			others = append(others, prefix)
		}
	}
	return append(identified, others...), complete
}

// stored returns the resources of each shard that have replicas.
func (d *digests) stored() (all []replicas) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for of, table := range d.tables {
		if table.Len() > 0 {
			all = append(all, of)
		}
	}
	return all
}

func (d *digests) shards() sets.Set[string] {
	shards := sets.New[string]()
	for _, of := range d.stored() {
		shards.Insert(of.shard)
	}
	return shards
}

var (
	objectsGauge = instruments.NewDesc("shardplane_cache_replicas", "Replicas on the cache server, by name of their shard and resource.", "name", "resource")
	bytesGauge   = instruments.NewDesc("shardplane_cache_replica_bytes", "Size of the replicas in etcd without history, by name of their shard and resource.", "name", "resource")
)

// Describe implements prometheus.Collector.
func (d *digests) Describe(ch chan<- *prometheus.Desc) {
	ch <- objectsGauge
	ch <- bytesGauge
}

// Collect implements prometheus.Collector.
func (d *digests) Collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for of, table := range d.tables {
		if n := table.Len(); n > 0 {
			ch <- prometheus.MustNewConstMetric(objectsGauge, prometheus.GaugeValue, float64(n), of.shard, of.resource)
			ch <- prometheus.MustNewConstMetric(bytesGauge, prometheus.GaugeValue, float64(table.bytes), of.shard, of.resource)
		}
	}
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
	of := cmp.Or(tables[resource], &table{})
	switch {
	case resource == "":
		response.Resources = make(map[string]digest.Root, len(tables))
		for resource, table := range tables {
			response.Resources[resource] = table.Root()
		}
	case ofBucket:
		response.Keys = of.Keys(bucket)
	default:
		response.Buckets = make([]digest.Number, digest.Buckets)
		for i, sum := range of.Sums() {
			response.Buckets[i] = digest.Number(sum)
		}
	}
	return response, nil
}

// rejectIfFull keeps space for updates and deletions, e.g. of permissions, and for checkpoints.
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
