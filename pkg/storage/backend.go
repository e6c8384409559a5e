// Package storage makes any Kubernetes registry multi-tenant. It is a generic.RESTOptionsGetter
// whose storage takes the logical cluster of a request from the context and prefixes all keys with it.
//
//	registry        keys without a tenant: /core/configmaps/<namespace>/<name>
//	   │
//	tenantStorage   key prefix, annotation, wildcard, continue tokens, dispatch index
//	   │
//	CacheDelegator  upstream's watch cache, one for all logical clusters. The hub next to
//	   │            it follows its list and watch, and serves watches and pages
//	belowCache      disables features of etcd3 that the watch cache must not use
//	   │
//	etcd3           upstream's store on the shared client
//
// Package hub serves watches and pages, claims restricts requests to claimed objects, encryption
// encrypts stored values, usage counts them, and unreadable records objects that cannot be read.
// docs/storage.md describes the key layout, and docs/development/listwatch.md the hub.
package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
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

	// defaultReadyWait is how long a request waits for a watch cache that is being filled.
	defaultReadyWait = 5 * time.Second

	// countPeriod is the interval at which the objects of a resource are counted.
	countPeriod = time.Minute
)

// Unnamed is the label in metrics of resources without series of their own, as in Kubernetes.
var Unnamed = schema.GroupResource{Group: "unexpected", Resource: "unexpected"}

// BackendConfig configures a Backend.
type BackendConfig struct {
	// Client is the shared etcd client, whose context has the logger. The backend does not close it.
	Client *kubernetes.Client
	// Prefix is the prefix of all keys; the default is DefaultPrefix.
	Prefix string
	// CompactionInterval is the age at which history is compacted; 0 if another process compacts.
	CompactionInterval time.Duration
	// ShardSegment adds the shard of requests before the logical cluster in keys, for the cache server.
	ShardSegment bool
	// Transformers encrypt stored values; nil disables encryption.
	Transformers value.ResourceTransformers
	// ClaimLabels returns the labels that reads add to claimed objects; nil if there are none.
	ClaimLabels ClaimLabels
	// Named are the resources with series of their own in metrics; others are Unnamed. If nil, all
	// resources have their own. The memory of a series is never released. Therefore, the set must
	// not grow.
	Named sets.Set[schema.GroupResource]
	// EnableGarbageCollection allows deletions to orphan dependents or wait for them, which a garbage collector does.
	EnableGarbageCollection bool
	// MaxHistory is the maximum number of events in memory for each resource; 0 means the default of package hub.
	MaxHistory int
	// Unreadable records the objects that cannot be read; the default is a new record.
	Unreadable *unreadable.Record
}

// stopper is the interface of etcd3's unexported compactor type.
type stopper interface {
	etcd3.Compactor
	Stop()
}

// Backend stores the resources of a process in one etcd.
type Backend struct {
	cfg       BackendConfig
	compactor stopper
	fields    fieldSets

	mu     sync.Mutex
	closed bool
	// storages are the functions that close the open storages.
	storages map[*func()]struct{}
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
	cfg.Prefix = cmp.Or(cfg.Prefix, DefaultPrefix)
	cfg.Unreadable = cmp.Or(cfg.Unreadable, unreadable.NewRecord(cfg.Client.Ctx(), nil))
	checkFeatures(cfg.Client)
	metrics.SetStorageMonitorGetter(func() ([]metrics.Monitor, error) {
		return []metrics.Monitor{monitor{client: cfg.Client.Client}}, nil
	})
	return &Backend{
		cfg:       cfg,
		compactor: etcd3.NewCompactor(cfg.Client.Client, cfg.CompactionInterval, clock.RealClock{}, nil),
		storages:  map[*func()]struct{}{},
		fields:    fieldSets{seed: maphash.MakeSeed()},
		hubs:      map[string]*hub.Hub{},
	}, nil
}

// RESTOptionsGetter returns the options for registries. codecFor returns the storage codec of a resource.
func (b *Backend) RESTOptionsGetter(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter {
	return restOptionsGetter{backend: b, codecFor: codecFor}
}

type restOptionsGetter struct {
	backend  *Backend
	codecFor func(schema.GroupResource) (runtime.Codec, error)
}

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
	if b.cfg.Transformers != nil {
		cfg.Transformer = b.cfg.Transformers.TransformerForResource(resource)
	}
	return cfg.ForResource(resource)
}

// track registers destroy for Close. The returned function calls it earlier.
func (b *Backend) track(destroy func()) (func(), error) {
	destroy = sync.OnceFunc(destroy)
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		destroy() // takes the lock
		return nil, errors.New("the storage backend is closed")
	}
	defer b.mu.Unlock()
	b.storages[&destroy] = struct{}{}
	return func() {
		b.mu.Lock()
		delete(b.storages, &destroy)
		b.mu.Unlock()
		destroy()
	}, nil
}

// monitor provides apiserver_storage_size_bytes. A process has one monitor: the one of its latest backend.
type monitor struct {
	client *clientv3.Client
}

func (m monitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	endpoint := "" // of the in-process client
	if endpoints := m.client.Endpoints(); len(endpoints) > 0 {
		endpoint = endpoints[0]
	}
	status, err := m.client.Status(ctx, endpoint)
	if err != nil {
		return metrics.StorageMetrics{}, fmt.Errorf("reading the size of etcd: %w", err)
	}
	return metrics.StorageMetrics{Size: status.DbSize}, nil
}

func (monitor) Close() error { return nil }

// Ready reports whether etcd is available and supports the features that watch caches need.
func (b *Backend) Ready(ctx context.Context) error {
	if err := b.Health(ctx); err != nil {
		return err
	}
	if !etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress) {
		return errors.New("etcd does not support progress notifications, or its version is not known yet: v3.5.13 or newer is required")
	}
	return nil
}

// healthTimeout is as in kube-apiserver. An etcd without quorum does not respond.
const healthTimeout = 2 * time.Second

// Health reports whether etcd is available.
func (b *Backend) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if _, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+"/health"); err != nil {
		return fmt.Errorf("etcd does not respond: %w", err)
	}
	return nil
}

// Close closes the remaining storages and the compactor, but not the etcd client.
func (b *Backend) Close() {
	b.mu.Lock()
	b.closed = true
	storages := b.storages
	b.storages = nil
	b.mu.Unlock()
	for destroy := range storages {
		(*destroy)()
	}
	b.compactor.Stop()
}

// inProcessClients counts clients without a network address, to give each a unique endpoint.
var inProcessClients atomic.Int64

// checkFeatures makes the global feature checker of upstream's storage layer check the client. Otherwise, consistent
// lists would not be served from the watch cache, and streaming lists would fail. etcd3 does this for each store, but a
// server may have none until it is ready. The checker requires an endpoint, which an in-process client does not have.
func checkFeatures(client *kubernetes.Client) {
	if len(client.Endpoints()) > 0 {
		etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client.Client, storage.RequestWatchProgress)
		return
	}
	endpoint := fmt.Sprintf("in-process-%d", inProcessClients.Add(1))
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), inProcess{Client: client.Client, endpoint: endpoint}, storage.RequestWatchProgress)
}

type inProcess struct {
	*clientv3.Client
	endpoint string
}

func (c inProcess) Endpoints() []string { return []string{c.endpoint} }
