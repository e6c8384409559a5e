package versions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

var errClosed = errors.New("the server is shutting down")

// decodedBytes and encodedBytes limit the caches of all version stores together.
const decodedBytes, encodedBytes = 64 << 20, 64 << 20

// customSuffix follows the resource in keys of the core group. It separates them from built-in resources,
// including one that a later version may have under the same name.
const customSuffix = ":-custom"

type versionKey struct {
	hash    string
	version string
}

// Stores has one store with one watch cache for each resource, which all schemas share. It provides a store
// for each version of each schema to the upstream handler.
type Stores struct {
	config Config
	getter generic.RESTOptionsGetter
	// packer packs the objects in watch caches.
	packer *packed.Packer

	mu      sync.Mutex
	closed  bool
	stores  map[schema.GroupResource]*rawStore
	byStore map[*versionStore]versionKey
	byKey   map[versionKey]*versionStore
	// destroying are the stores that are being destroyed.
	destroying sync.WaitGroup

	decoded, encoded *budget
	calls            *calls

	// opened receives resources that should be counted immediately. If it is full, they are counted with the others.
	opened chan schema.GroupResource
}

// Config configures Stores.
type Config struct {
	Storage func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter
	// Building returns the schema for which the upstream handler is creating serving info.
	Building func() *definitions.Schema
	// Instances returns the upstream handler's registry for a synthetic definition, creating its serving info
	// if necessary.
	Instances func(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
	// Replicas is set if objects are replicas of other servers' objects.
	Replicas bool
	// Unreadable records the objects that cannot be read with their definition.
	Unreadable *unreadable.Record
	// Calls limits, per logical cluster, the concurrent calls of conversion webhooks, and the updates that may call
	// one for managed fields; 0 means webhooktransport.DefaultCallsPerCluster.
	Calls int
	// MetricName returns the name of a resource in metrics.
	MetricName func(schema.GroupResource) schema.GroupResource
}

// NewVersionStores returns empty Stores.
func NewVersionStores(cfg Config) *Stores {
	packer := packed.NewPacker()
	codec := packedCodec{newRawCodec(), packer}
	return &Stores{
		config:  cfg,
		packer:  packer,
		calls:   &calls{webhooktransport.NewCalls(cfg.Calls), webhooktransport.NewCalls(cfg.Calls)},
		getter:  cfg.Storage(func(schema.GroupResource) (runtime.Codec, error) { return codec, nil }),
		stores:  map[schema.GroupResource]*rawStore{},
		byStore: map[*versionStore]versionKey{},
		byKey:   map[versionKey]*versionStore{},
		opened:  make(chan schema.GroupResource, 64),

		decoded: newBudget(decodedBytes),
		encoded: newBudget(encodedBytes),
	}
}

// use returns the store of a schema's version, or nil. It is not destroyed before done is called.
func (s *Stores) use(sch *definitions.Schema, version string) (v *versionStore, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v = s.byKey[versionKey{sch.Hash, version}]
	if v == nil {
		return nil, func() {}
	}
	v.uses++
	return v, sync.OnceFunc(func() {
		s.mu.Lock()
		v.uses--
		destroy := s.endLocked(v)
		s.mu.Unlock()
		destroy()
	})
}

// open returns the store of a schema's version, as use does, and its upstream registry. If necessary, it has
// upstream's handler create serving info, and with it the store.
func (s *Stores) open(sch *definitions.Schema, version string) (v *versionStore, registry *customresource.REST, done func(), err error) {
	instances, err := s.config.Instances(sch.CRD())
	if err != nil {
		return nil, nil, func() {}, err
	}
	registry, ok := instances.(*customresource.REST)
	if v, done = s.use(sch, version); v == nil || !ok {
		return nil, nil, done, fmt.Errorf("no storage exists for %s in version %s", sch.Resource, version)
	}
	return v, registry, done, nil
}

// EvictIdle removes cache entries of version stores that had no hit since three calls ago.
func (s *Stores) EvictIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.byStore {
		v.decoded.evictIdle()
		v.encoded.evictIdle()
	}
}

// GetRESTOptions is called by the upstream handler under its lock for the schema that it has just requested.
func (s *Stores) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	sch := s.config.Building()
	if sch == nil || sch.Resource != resource {
		return generic.RESTOptions{}, fmt.Errorf("no definition of %s is being served", resource)
	}
	options, err := s.restOptions(sch)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	shared := options
	config := *options.StorageConfig
	config.Codec = newRawCodec() // the caller adds the schema's
	options.StorageConfig = &config
	options.CountMetricPollPeriod = 0 // Count counts once for all schemas
	options.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error),
		newFunc, _ func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		return s.newVersionStore(sch, shared, prefix, config.Codec, newFunc)
	}
	return options, nil
}

func storedResource(sch *definitions.Schema) schema.GroupResource {
	if sch.Projection != nil {
		return sch.Projection.Stored
	}
	return sch.Resource
}

func (s *Stores) restOptions(sch *definitions.Schema) (generic.RESTOptions, error) {
	options, err := s.getter.GetRESTOptions(storedResource(sch), nil)
	options.ResourcePrefix = resourcePrefix(sch)
	return options, err
}

// PrefixOf returns the prefix of the keys of the objects of a schema, with slashes around it.
func (s *Stores) PrefixOf(sch *definitions.Schema) string { return resourcePrefix(sch) + "/" }

func resourcePrefix(sch *definitions.Schema) string {
	prefix := multitenant.ResourcePrefix(storedResource(sch))
	if sch.Resource.Group == "" {
		prefix += customSuffix
	}
	return prefix
}

func (s *Stores) newVersionStore(sch *definitions.Schema, shared generic.RESTOptions, prefix string, codec runtime.Codec, newFunc func() runtime.Object) (storage.Interface, factory.DestroyFunc, error) {
	u, ok := newFunc().(*unstructured.Unstructured)
	if !ok {
		return nil, nil, fmt.Errorf("%s is not a custom resource", sch.Resource)
	}
	selects, err := selectableAttributes(sch.Version(u.GroupVersionKind().Version))
	if err != nil {
		return nil, nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := s.openLocked(storedResource(sch), shared, prefix)
	if err != nil {
		return nil, nil, err
	}
	raw.users++
	v := newVersionStore(raw, sch, u.GroupVersionKind(), codec, s.calls, s.decoded, s.encoded)
	v.callsWebhook = s.Calls(sch)
	v.selects = selects
	if v.projection = sch.Projection; v.projection != nil {
		v.selects = attributesWith(func(set fields.Set, stored *packed.Object) {
			set["metadata.name"] = v.projection.ShownName(stored.Unstructured())
		})
	}
	known := versionKey{sch.Hash, v.gvk.Version}
	s.byStore[v] = known
	s.byKey[known] = v
	return v, sync.OnceFunc(func() { s.drop(v) }), nil
}

// Calls reports whether a webhook outside of this process converts objects of a schema. A function of this
// process returns the same result each time.
func (s *Stores) Calls(sch *definitions.Schema) bool {
	conversion := sch.Spec().Conversion
	return conversion != nil && conversion.Strategy == apiextensionsv1.WebhookConverter && sch.Convert == nil
}

// openLocked returns the store of a resource, and opens it if necessary. The caller must increment users.
func (s *Stores) openLocked(resource schema.GroupResource, shared generic.RESTOptions, prefix string) (*rawStore, error) {
	if s.closed {
		return nil, errClosed
	}
	if raw, ok := s.stores[resource]; ok {
		return raw, nil
	}
	store, destroy, err := shared.Decorator(
		shared.StorageConfig, prefix, keyFunc(prefix),
		func() runtime.Object { return &packed.Object{} },
		func() runtime.Object { return &packed.List{} },
		s.attributes, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("making the storage of %s: %w", resource, err)
	}
	raw := &rawStore{Interface: store, resource: resource, prefix: prefix, unreadable: s.config.Unreadable, destroy: destroy}
	s.stores[resource] = raw
	select {
	case s.opened <- resource:
	default:
	}
	return raw, nil
}

// drop closes a version store and, with the last one, the shared store.
func (s *Stores) drop(v *versionStore) {
	v.close()
	s.mu.Lock()
	if known := s.byStore[v]; s.byKey[known] == v {
		delete(s.byKey, known)
	}
	v.dropped = true
	destroy := s.endLocked(v)
	s.mu.Unlock()
	destroy()
}

// endLocked removes a dropped version store that is no longer used. The caller must call destroy without the
// lock, because it waits for running requests.
func (s *Stores) endLocked(v *versionStore) (destroy func()) {
	if !v.dropped || v.uses > 0 {
		return func() {}
	}
	delete(s.byStore, v)
	v.raw.users--
	if v.raw.users > 0 || s.closed {
		return func() {}
	}
	delete(s.stores, v.raw.resource)
	s.publishLocked(s.config.MetricName(v.raw.resource))
	s.destroying.Add(1)
	return func() {
		defer s.destroying.Done()
		v.raw.destroy()
	}
}

// Close closes all stores.
func (s *Stores) Close() {
	defer s.destroying.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for v := range s.byStore {
		v.close()
	}
	for resource, raw := range s.stores {
		raw.destroy()
		metrics.DeleteStoreStats(s.config.MetricName(resource))
	}
	s.stores = nil
}

func keyFunc(prefix string) func(runtime.Object) (string, error) {
	return func(obj runtime.Object) (string, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return "", err
		}
		if ns := m.GetNamespace(); ns != "" {
			return prefix + "/" + ns + "/" + m.GetName(), nil
		}
		return prefix + "/" + m.GetName(), nil
	}
}

// attributes is attributesOf with interned strings, because a watch cache keeps them for each object.
func (s *Stores) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	l, f, err := attributesOf(obj)
	return s.packer.Texts(l), s.packer.Texts(f), err
}

// errUncounted lets a metric report that its value is unknown.
var errUncounted = errors.New("not all objects could be counted")

// publishLocked updates the metrics with a name, which several resources may share.
func (s *Stores) publishLocked(name schema.GroupResource) {
	var sum storage.Stats
	var err error
	counted, bytes := false, int64(0)
	for resource, raw := range s.stores {
		if raw.stats == nil || s.config.MetricName(resource) != name {
			continue
		}
		counted = true
		sum.ObjectCount += raw.stats.ObjectCount
		bytes += raw.stats.ObjectCount * raw.stats.EstimatedAverageObjectSizeBytes
		if raw.uncounted {
			err = errUncounted
		}
	}
	if !counted {
		metrics.DeleteStoreStats(name)
		return
	}
	if sum.ObjectCount > 0 {
		sum.EstimatedAverageObjectSizeBytes = bytes / sum.ObjectCount
	}
	metrics.UpdateStoreStats(name, sum, err)
}

// countPeriod is the same as upstream's.
const countPeriod = time.Minute

// Count updates the metrics with the number of objects per resource until ctx ends. Upstream counts once per
// registry, i.e. once per schema here, each in its own goroutine.
func (s *Stores) Count(ctx context.Context) {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case resource := <-s.opened:
			s.count(ctx, resource)
		case <-ticker.C:
			s.mu.Lock()
			resources := slices.Collect(maps.Keys(s.stores))
			s.mu.Unlock()
			s.count(ctx, resources...)
		}
	}
}

func (s *Stores) count(ctx context.Context, resources ...schema.GroupResource) {
	names := sets.Set[schema.GroupResource]{}
	for _, resource := range resources {
		s.mu.Lock()
		raw := s.stores[resource]
		s.mu.Unlock()
		if raw == nil {
			continue
		}
		stats, err := raw.Stats(ctx)
		if err != nil {
			stats = storage.Stats{}
		}
		s.mu.Lock()
		raw.stats, raw.uncounted = &stats, err != nil
		s.mu.Unlock()
		names.Insert(s.config.MetricName(resource))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range names {
		s.publishLocked(name)
	}
}
