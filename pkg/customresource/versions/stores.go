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
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// errClosed is what storage answers once the server has stopped.
var errClosed = errors.New("the server is shutting down")

// decodedBytes and encodedBytes are how many bytes of objects, and of their JSON
// for lists, the views remember, all together.
const decodedBytes, encodedBytes = 64 << 20, 64 << 20

// customSuffix follows the resource in the keys of objects of the group "", so that
// they lie apart from those of built-in resources, also of one that a later version
// has under the same name.
const customSuffix = ":-custom"

// viewKey names a view.
type viewKey struct {
	hash    string
	version string
}

// Stores keep one store with one watch cache for each resource, shared by
// all schemas, and gives the upstream handler a view of it for each schema and
// version.
type Stores struct {
	config Config
	getter generic.RESTOptionsGetter
	// packer packs what is in watch caches.
	packer *packed.Packer

	mu     sync.Mutex
	closed bool
	stores map[schema.GroupResource]*rawStore
	views  map[*view]viewKey
	byKey  map[viewKey]*view
	// destroying are the stores that are being destroyed.
	destroying sync.WaitGroup

	decoded, encoded *budget
	calls            *calls

	// opened names resources that are to be counted at once. What does not fit
	// is counted with all others.
	opened chan schema.GroupResource
	// tallies are what was counted of each resource that has a store.
	tallies tallies
}

// Config is what Stores are made of.
type Config struct {
	// Storage gives the multi-tenant storage options for a codec.
	Storage func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter
	// Building returns the schema for which the upstream handler makes serving
	// info at the moment.
	Building func() *definitions.Schema
	// Instances has the upstream handler make the serving info of a synthetic
	// definition, unless there is some, and returns the registry in it.
	Instances func(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
	// Replicas is set where objects are replicas of those of other servers.
	Replicas bool
	// Unreadable records the objects that cannot be read with their definition; nil for a record of its own.
	Unreadable *unreadable.Record
	// Calls is how many conversion webhooks are called at a time for one logical cluster, and how
	// many updates there are at a time that may call one for managed fields; 0 is
	// webhooktransport.DefaultCallsPerCluster.
	Calls int
	// Hooks say which webhooks are functions of this process; nil means that none are.
	Hooks *Hooks
	// MetricName returns what metrics call a resource.
	MetricName func(schema.GroupResource) schema.GroupResource
}

// New returns stores that hold nothing yet.
func New(cfg Config) *Stores {
	if cfg.Unreadable == nil {
		cfg.Unreadable = unreadable.NewRecord(nil)
	}
	packer := packed.NewPacker()
	codec := packedCodec{newRawCodec(), packer}
	s := &Stores{
		config: cfg,
		packer: packer,
		calls:  newCalls(cfg.Calls),
		getter: cfg.Storage(func(schema.GroupResource) (runtime.Codec, error) { return codec, nil }),
		stores: map[schema.GroupResource]*rawStore{},
		views:  map[*view]viewKey{},
		byKey:  map[viewKey]*view{},
		opened: make(chan schema.GroupResource, 64),

		decoded: newBudget(decodedBytes),
		encoded: newBudget(encodedBytes),

		tallies: tallies{of: map[schema.GroupResource]tally{}, sums: map[schema.GroupResource]tally{}},
	}
	return s
}

// use returns the view of a schema's version, or nil if there is none. The view
// and its store stay until done is called.
func (s *Stores) use(sch *definitions.Schema, version string) (v *view, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v = s.byKey[viewKey{sch.Hash, version}]
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

// EvictIdle lets views drop what was of no use between the last three calls.
func (s *Stores) EvictIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.views {
		v.decoded.evictIdle()
		v.encoded.evictIdle()
	}
}

// GetRESTOptions implements generic.RESTOptionsGetter for the upstream handler,
// which calls it under its lock for the schema that it has just asked for.
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
	config.Codec = newRawCodec() // the caller puts the schema's on top
	options.StorageConfig = &config
	options.CountMetricPollPeriod = 0 // counted by Count, not per schema
	options.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error),
		newFunc, _ func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		return s.newView(sch, shared, prefix, config.Codec, newFunc)
	}
	return options, nil
}

// storedResource is the resource whose objects are shown under a schema.
func storedResource(sch *definitions.Schema) schema.GroupResource {
	if sch.Projection != nil {
		return sch.Projection.Stored
	}
	return sch.Resource
}

// restOptions are the options of the store that holds the objects of a schema.
func (s *Stores) restOptions(sch *definitions.Schema) (generic.RESTOptions, error) {
	options, err := s.getter.GetRESTOptions(storedResource(sch), nil)
	options.ResourcePrefix += s.suffix(sch)
	return options, err
}

// PrefixOf returns the prefix of the keys of the objects of a schema, with slashes around it.
func (s *Stores) PrefixOf(sch *definitions.Schema) string {
	return multitenant.ResourcePrefix(storedResource(sch)) + s.suffix(sch) + "/"
}

// suffix is what the prefix of the keys of a schema's objects has more than those of built-in
// resources.
func (s *Stores) suffix(sch *definitions.Schema) string {
	if sch.Resource.Group == "" {
		return customSuffix
	}
	return ""
}

// newView makes the view of a schema's version on the shared store.
func (s *Stores) newView(sch *definitions.Schema, shared generic.RESTOptions, prefix string, codec runtime.Codec, newFunc func() runtime.Object) (storage.Interface, factory.DestroyFunc, error) {
	u, ok := newFunc().(*unstructured.Unstructured)
	if !ok {
		return nil, nil, fmt.Errorf("%s is not a custom resource", sch.Resource)
	}
	selectable, err := selectableFields(sch.Spec(), u.GroupVersionKind().Version)
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
	v := newView(raw, sch, u.GroupVersionKind(), codec, s.calls, s.decoded, s.encoded)
	v.hooked = s.Calls(sch)
	v.selects = selectedBy(selectable)
	if v.projection = sch.Projection; v.projection != nil {
		v.selects = shownBy(v.projection)
	}
	known := viewKey{sch.Hash, v.gvk.Version}
	s.views[v] = known
	s.byKey[known] = v
	return v, sync.OnceFunc(func() { s.drop(v) }), nil
}

// Calls reports whether somebody is called to convert objects of a schema between versions. Where a
// function of this process does that, the answer is the same each time.
func (s *Stores) Calls(sch *definitions.Schema) bool {
	conversion := sch.Spec().Conversion
	return conversion != nil && conversion.Strategy == apiextensionsv1.WebhookConverter && sch.Convert == nil && !s.config.Hooks.convertsHere(conversion)
}

// openLocked returns the store of a resource, which it opens unless it is open. The caller counts
// itself among its users.
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

// drop ends a view and, with the last one, the shared store.
func (s *Stores) drop(v *view) {
	v.close()
	s.mu.Lock()
	if known := s.views[v]; s.byKey[known] == v {
		delete(s.byKey, known)
	}
	v.dropped = true
	destroy := s.endLocked(v)
	s.mu.Unlock()
	destroy()
}

// endLocked forgets a view that was dropped once nobody uses it. What it returns
// destroys the shared store if that was the last view; it waits for what the
// store has under way, so it is for the caller to call without the lock.
func (s *Stores) endLocked(v *view) (destroy func()) {
	if !v.dropped || v.uses > 0 {
		return func() {}
	}
	delete(s.views, v)
	v.raw.users--
	if v.raw.users > 0 || s.closed {
		return func() {}
	}
	delete(s.stores, v.raw.resource)
	s.tallies.set(s.config.MetricName(v.raw.resource), v.raw.resource, tally{})
	s.destroying.Add(1)
	return func() {
		defer s.destroying.Done()
		v.raw.destroy()
	}
}

// Close ends all views and stores.
func (s *Stores) Close() {
	defer s.destroying.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for v := range s.views {
		v.close()
	}
	for resource, raw := range s.stores {
		raw.destroy()
		s.tallies.set(s.config.MetricName(resource), resource, tally{})
	}
	s.stores = nil
}

// keyFunc returns the storage key of an object, whatever its scope.
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

// attributes is attributesOf for a watch cache, which keeps them of each object.
func (s *Stores) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	l, f, err := attributesOf(obj)
	return s.packer.Texts(l), s.packer.Texts(f), err
}

// countPeriod is how often the objects of resources are counted; upstream's.
const countPeriod = time.Minute

// Count keeps the metrics that tell how many objects of each resource there are
// until ctx ends: those of all schemas and logical clusters together. Upstream
// has every registry count, which here would be every schema, and with a
// goroutine each.
func (s *Stores) Count(ctx context.Context) {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case key := <-s.opened:
			s.countOne(ctx, key)
		case <-ticker.C:
			for _, key := range s.keys() {
				s.countOne(ctx, key)
			}
		}
	}
}

// keys returns the keys of all stores.
func (s *Stores) keys() []schema.GroupResource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.stores))
}

// countOne counts the objects of a store, of all identities.
func (s *Stores) countOne(ctx context.Context, key schema.GroupResource) {
	s.mu.Lock()
	raw := s.stores[key]
	s.mu.Unlock()
	if raw == nil {
		return
	}
	sum := tally{resources: 1}
	if stats, err := raw.Stats(ctx); err != nil {
		sum.failed = 1
	} else {
		sum.objects = stats.ObjectCount
		sum.bytes = stats.ObjectCount * stats.EstimatedAverageObjectSizeBytes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stores[key] != nil {
		s.tallies.set(s.config.MetricName(raw.resource), key, sum)
	}
}
