package storage

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// caches counts watch caches, to tell them apart.
var caches atomic.Int64

// Decorator is the generic.StorageDecorator of the backend: it opens the
// storage of one resource, for all logical clusters. The trigger and indexers
// of the registry are not used: the watch cache takes one index function, and
// it is that of the logical cluster; and lists by cluster prefix are cheap.
func (b *Backend) Decorator(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	keyFunc func(obj runtime.Object) (string, error),
	newFunc func() runtime.Object,
	newListFunc func() runtime.Object,
	getAttrs storage.AttrFunc,
	_ storage.IndexerFuncs,
	_ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	s, destroy, err := b.open(resource{
		config:         config,
		resourcePrefix: resourcePrefix,
		keyFunc:        keyFunc,
		newFunc:        newFunc,
		newListFunc:    newListFunc,
		getAttrs:       getAttrs,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("storage of %s: %w", config.GroupResource, err)
	}
	destroy, err = b.track(destroy)
	if err != nil {
		return nil, nil, err
	}
	return s, destroy, nil
}

// nameInMetrics returns what metrics call a resource.
func (b *Backend) nameInMetrics(resource schema.GroupResource) schema.GroupResource {
	if b.cfg.Named == nil || b.cfg.Named.Has(resource) {
		return resource
	}
	return Unnamed
}

// open assembles the layers that the package comment draws.
func (b *Backend) open(r resource) (storage.Interface, func(), error) {
	keys, err := newKeyspace(r.resourcePrefix, b.cfg.ShardSegment)
	if err != nil {
		return nil, nil, err
	}
	getAttrs := r.getAttrs
	if keys.sharded {
		getAttrs = withClusterField(getAttrs)
	}
	named := b.nameInMetrics(r.config.GroupResource)
	s := &tenantStorage{keys: keys, resource: r.config.GroupResource, named: named, getAttrs: getAttrs, newFunc: r.newFunc, unreadable: b.Unreadable}

	if b.cfg.ClaimLabels != nil && !keys.sharded {
		s.labels = &claimLabels{b.cfg.ClaimLabels, r.config.GroupResource}
	}

	raw, closeRaw, err := b.openEtcd(r, keys, &s.undecodable)
	if err != nil {
		return nil, nil, err
	}
	s.raw = raw
	// Two caches of a resource, as replicas in one process have, are two.
	source := fmt.Sprintf("cache %d of %s", caches.Add(1), keys.root)
	below := &belowCache{Interface: raw, source: source, progress: newProgress(b.cfg.Client.Client, source)}
	var shown func(runtime.Object) runtime.Object
	if s.labels != nil {
		shown = s.labels.shown
	}
	follower := hub.New(hub.Config{
		Resource:        named,
		Root:            keys.root,
		Versioner:       raw.Versioner(),
		KeyFunc:         keys.cacheKeyFunc(r.keyFunc),
		GetAttrs:        getAttrs,
		NewFunc:         r.newFunc,
		Shown:           shown,
		WantProgress:    below.progress.want,
		CurrentVersion:  below.GetCurrentResourceVersion,
		CompactRevision: raw.CompactRevision,
		Undecodable:     func() bool { return s.undecodable.Swap(false) },
	})
	opened := make(chan struct{})
	c, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             followed{below, follower, opened},
		Versioner:           raw.Versioner(),
		GroupResource:       named,
		EventsHistoryWindow: r.config.EventsHistoryWindow,
		ResourcePrefix:      keys.root,
		KeyFunc:             func(obj runtime.Object) (string, error) { return follower.Key(obj), nil },
		GetAttrsFunc:        getAttrs,
		IndexerFuncs:        storage.IndexerFuncs{clusterField: keys.dispatchValueOf},
		NewFunc:             r.newFunc,
		NewListFunc:         r.newListFunc,
		Codec:               r.config.Codec,
		Clock:               &s.quiet,
	})
	if err != nil {
		below.progress.stop()
		closeRaw()
		return nil, nil, fmt.Errorf("watch cache: %w", err)
	}
	// It keeps no snapshots, of which it would make one for each event, with two or
	// three kilobytes of its tree that differ from the one before: the hub has those
	// that lists need. It asks for that before it is filled, since a snapshot that was
	// left would be taken for the state of all later versions.
	c.MarkConsistent(false)
	close(opened)
	below.cache.Store(c)
	delegator := cacher.NewCacheDelegator(c, below)
	s.inner, s.cache, s.readyWait, s.hub = delegator, c, b.cfg.ReadyWait, follower
	forget := b.remember(keys.root, follower)
	return s, func() {
		forget()
		below.progress.stop()
		follower.Close()
		delegator.Stop()
		c.Stop()
		s.asking.Wait()
		closeRaw()
	}, nil
}

// openEtcd opens upstream's store on the shared client.
func (b *Backend) openEtcd(r resource, keys keyspace, undecodable *atomic.Bool) (storage.Interface, func(), error) {
	cfg := r.config
	if cfg.Codec == nil {
		return nil, nil, errors.New("no codec")
	}
	transformer := cfg.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	codec := recoveringCodec{cfg.Codec, undecodable}
	decoder := etcd3.NewDefaultDecoder(codec, versioner)
	unsafeDelete := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if unsafeDelete {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	s, err := etcd3.New(b.cfg.Client, b.compactor, codec, r.newFunc, r.newListFunc, cfg.Prefix, keys.root,
		b.nameInMetrics(cfg.GroupResource), notingTransformer{transformer}, cfg.LeaseManagerConfig, tolerantDecoder{decoder, b.reporter(r, keys)}, versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("etcd store: %w", err)
	}
	if unsafeDelete {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(s, cfg.GroupResource), s.Close, nil
	}
	return s, s.Close, nil
}

// cacheKeyFunc returns the function that gives the watch cache an object's
// key. It never fails, for an error would fail the whole cache: an object that
// was written around the API gets a key that only wildcard readers see.
func (k keyspace) cacheKeyFunc(keyFunc func(runtime.Object) (string, error)) func(runtime.Object) string {
	return func(obj runtime.Object) string {
		t, ok := tenantOf(obj, k.sharded)
		if ok {
			if key, err := keyFunc(obj); err == nil {
				if key, err = k.object(t, key); err == nil {
					return key
				}
			}
		}
		object, err := meta.Accessor(obj)
		if err != nil {
			return k.root + nowhere + "/" + nowhere
		}
		return k.root + nowhere + "/" + url.PathEscape(object.GetNamespace()) + "/" + url.PathEscape(object.GetName()) + "/" + string(object.GetUID())
	}
}

// clusterField is the name of the watch cache's one index, and on the cache
// server of a field of each object. It can be no path in an object.
const clusterField = "shardplane.io/cluster"

// dispatchValueOf is the index function of the watch cache.
func (k keyspace) dispatchValueOf(obj runtime.Object) string {
	t, ok := tenantOf(obj, k.sharded)
	if !ok {
		return ""
	}
	return t.dispatchValue()
}

func (t tenant) dispatchValue() string {
	value := string(t.cluster)
	if t.shard != "" {
		value = t.shard + "/" + value
	}
	if t.identity != "" {
		value = identityMark + t.identity + "/" + value
	}
	return value
}

// withClusterField makes the logical cluster a field that can be selected, for
// requests for one logical cluster of all shards.
func withClusterField(getAttrs storage.AttrFunc) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := getAttrs(obj)
		if err != nil {
			return nil, nil, err
		}
		t, _ := tenantOf(obj, true)
		withCluster := make(fields.Set, len(f)+1)
		maps.Copy(withCluster, f)
		withCluster[clusterField] = string(t.cluster)
		return l, withCluster, nil
	}
}
