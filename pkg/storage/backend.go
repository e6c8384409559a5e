package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"github.com/shardplane/shardplane/pkg/storage/hub"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

const (
	// DefaultPrefix is the prefix of all keys of a backend.
	DefaultPrefix = "/shardplane"

	// defaultReadyWait is how long a request waits for a watch cache that is
	// still being filled.
	defaultReadyWait = 5 * time.Second

	// countPeriod is how often the number of a resource's objects is measured.
	countPeriod = time.Minute
)

// Unnamed stands in metrics for resources that have no series of their own. The
// word is what Kubernetes writes for labels that are not allowed.
var Unnamed = schema.GroupResource{Group: "unexpected", Resource: "unexpected"}

// BackendConfig says how a process stores its resources.
type BackendConfig struct {
	// Client is the one etcd client, which the backend shares and does not
	// close.
	Client *kubernetes.Client
	// Prefix starts all keys; DefaultPrefix if empty.
	Prefix string
	// CompactionInterval is how often history that is older than the interval
	// is removed. 0 means never: for tests, or where another process does so.
	CompactionInterval time.Duration
	// ShardSegment puts the request's shard before the logical cluster in keys:
	// for the cache server. Without it, requests with a shard fail.
	ShardSegment bool
	// Transformers encrypt what is stored, by resource; nil stores all as it is.
	Transformers value.ResourceTransformers
	// ClaimLabels tells the labels that reads show on objects which are claimed; nil if
	// there are none, and for the cache server, whose objects are claimed elsewhere.
	ClaimLabels ClaimLabels
	// Named are the resources that have series of their own in metrics; all others
	// are Unnamed there. nil gives all resources their own: memory that is never
	// given back, so that it is for sets that do not grow.
	Named sets.Set[schema.GroupResource]
	// EnableGarbageCollection lets deletion orphan or wait for dependents. It
	// takes a garbage collector that removes the finalizers.
	EnableGarbageCollection bool
	// Unreadable records the objects that cannot be read; nil for a record of the backend's own.
	Unreadable *unreadable.Record
	// ReadyWait is how long a request waits for a watch cache that is being
	// filled, before it is told to retry; 5 s if 0.
	ReadyWait time.Duration
}

// stopper is etcd3's compactor, whose type is not exported.
type stopper interface {
	etcd3.Compactor
	Stop()
}

// Backend stores the resources of a process in one etcd.
type Backend struct {
	cfg       BackendConfig
	compactor stopper

	mu       sync.Mutex
	closed   bool
	nextID   int
	storages map[int]func()
	hubs     map[string]*hub.Hub
}

// NewBackend returns a backend on the shared client of cfg.
func NewBackend(cfg BackendConfig) (*Backend, error) {
	if cfg.Client == nil {
		return nil, errors.New("a storage backend needs an etcd client")
	}
	if cfg.CompactionInterval < 0 {
		return nil, fmt.Errorf("the compaction interval must not be negative, got %s", cfg.CompactionInterval)
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if cfg.ReadyWait == 0 {
		cfg.ReadyWait = defaultReadyWait
	}
	if cfg.Unreadable == nil {
		cfg.Unreadable = unreadable.NewRecord(nil)
	}
	checkFeatures(cfg.Client)
	metrics.SetStorageMonitorGetter(func() ([]metrics.Monitor, error) {
		return []metrics.Monitor{monitor{client: cfg.Client.Client}}, nil
	})
	return &Backend{
		cfg:       cfg,
		compactor: etcd3.NewCompactor(cfg.Client.Client, cfg.CompactionInterval, clock.RealClock{}, nil),
		storages:  map[int]func(){},
		hubs:      map[string]*hub.Hub{},
	}, nil
}

// RESTOptionsGetter returns the options for registries. codecFor gives the
// codec that a resource is stored with.
func (b *Backend) RESTOptionsGetter(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter {
	return restOptionsGetter{backend: b, codecFor: codecFor}
}

type restOptionsGetter struct {
	backend  *Backend
	codecFor func(schema.GroupResource) (runtime.Codec, error)
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g restOptionsGetter) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, err := g.codecFor(resource)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("codec for %s: %w", resource, err)
	}
	return generic.RESTOptions{
		StorageConfig:           g.backend.storageConfig(resource, codec),
		Decorator:               g.backend.Decorator,
		EnableGarbageCollection: g.backend.cfg.EnableGarbageCollection,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          ResourcePrefix(resource),
		CountMetricPollPeriod:   countPeriod,
	}, nil
}

func (b *Backend) storageConfig(resource schema.GroupResource, codec runtime.Codec) *storagebackend.ConfigForResource {
	cfg := storagebackend.NewDefaultConfig(b.cfg.Prefix, codec)
	cfg.CompactionInterval = b.cfg.CompactionInterval
	cfg.CountMetricPollPeriod = countPeriod
	if b.cfg.Transformers != nil {
		cfg.Transformer = b.cfg.Transformers.TransformerForResource(resource)
	}
	return cfg.ForResource(resource)
}

// track has destroy called by Close, unless it was called before.
func (b *Backend) track(destroy func()) (func(), error) {
	destroy = sync.OnceFunc(destroy)
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		destroy() // which asks for the lock
		return nil, errors.New("the storage backend is closed")
	}
	defer b.mu.Unlock()
	id := b.nextID
	b.nextID++
	b.storages[id] = destroy
	return func() {
		b.mu.Lock()
		delete(b.storages, id)
		b.mu.Unlock()
		destroy()
	}, nil
}

// monitor measures etcd for the metric apiserver_storage_size_bytes, of which
// a process has one: that of its latest backend.
type monitor struct {
	client *clientv3.Client
}

// Monitor implements metrics.Monitor.
func (m monitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	endpoint := "" // the in-process client's
	if endpoints := m.client.Endpoints(); len(endpoints) > 0 {
		endpoint = endpoints[0]
	}
	status, err := m.client.Status(ctx, endpoint)
	if err != nil {
		return metrics.StorageMetrics{}, fmt.Errorf("etcd does not tell its size: %w", err)
	}
	return metrics.StorageMetrics{Size: status.DbSize}, nil
}

// Close implements metrics.Monitor; the client is not the monitor's.
func (monitor) Close() error { return nil }

// Ready reports whether etcd answers and supports what the watch caches need.
func (b *Backend) Ready(ctx context.Context) error {
	if err := b.Health(ctx); err != nil {
		return err
	}
	if !etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress) {
		return errors.New("etcd does not support progress notifications, or was not asked yet: it must be v3.5.13 or newer")
	}
	return nil
}

// healthTimeout is how long etcd may take to answer, as in kube-apiserver.
const healthTimeout = 2 * time.Second

// Health reports whether etcd answers soon. A probe that waits for an etcd without a
// quorum would tell nobody.
func (b *Backend) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if _, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+"/health"); err != nil {
		return fmt.Errorf("etcd does not answer: %w", err)
	}
	return nil
}

// Close closes what is left of the storages, and the compactor. The etcd
// client stays open.
func (b *Backend) Close() {
	b.mu.Lock()
	b.closed = true
	storages := b.storages
	b.storages = map[int]func(){}
	b.mu.Unlock()
	for _, destroy := range storages {
		destroy()
	}
	b.compactor.Stop()
}
