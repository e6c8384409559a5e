package storage

import (
	"errors"
	"fmt"
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
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// caches counts watch caches, to name their etcd streams.
var caches atomic.Int64

type resource struct {
	config         *storagebackend.ConfigForResource
	resourcePrefix string
	keyFunc        func(runtime.Object) (string, error)
	newFunc        func() runtime.Object
	newListFunc    func() runtime.Object
	getAttrs       storage.AttrFunc
}

// Decorator is the generic.StorageDecorator of the backend. It opens the storage of one resource for all tenants. The
// registry's trigger and indexers are not needed, because the hub serves watches, and lists by prefix are cheap.
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
	s, destroy, err := b.open(resource{config, resourcePrefix, keyFunc, newFunc, newListFunc, getAttrs})
	if err != nil {
		return nil, nil, fmt.Errorf("storage of %s: %w", config.GroupResource, err)
	}
	destroy, err = b.track(destroy)
	if err != nil {
		return nil, nil, err
	}
	return s, destroy, nil
}

// open assembles the layers that are drawn in the package comment.
func (b *Backend) open(r resource) (storage.Interface, func(), error) {
	keys, err := newKeyspace(r.resourcePrefix, b.cfg.ShardSegment)
	if err != nil {
		return nil, nil, err
	}
	getAttrs := b.fields.sharing(r.getAttrs)
	if keys.sharded {
		getAttrs = withClusterField(getAttrs)
	}
	named := r.config.GroupResource
	if b.cfg.Named != nil && !b.cfg.Named.Has(named) {
		named = Unnamed
	}
	s := &tenantStorage{keys: keys, resource: r.config.GroupResource, named: named, getAttrs: getAttrs, unreadable: b.Unreadable}
	if b.cfg.ClaimLabels != nil && !keys.sharded {
		s.labels = &claimLabels{b.cfg.ClaimLabels, r.config.GroupResource}
	}

	var undecodable atomic.Bool // set when an object cannot be decoded
	raw, closeRaw, err := b.openEtcd(r, keys, named, &undecodable)
	if err != nil {
		return nil, nil, err
	}
	s.raw = raw
	// The number distinguishes caches of the same resource, e.g. of replicas in one process.
	source := fmt.Sprintf("cache %d of %s", caches.Add(1), keys.root)
	below := &belowCache{Interface: raw, source: source, progress: newProgress(b.cfg.Client.Client, source)}
	follower := hub.NewHub(hub.Config{
		Logger:          klog.FromContext(b.cfg.Client.Ctx()),
		Resource:        named,
		Root:            keys.root,
		Versioner:       raw.Versioner(),
		KeyFunc:         keys.cacheKeyFunc(r.keyFunc),
		GetAttrs:        getAttrs,
		NewFunc:         r.newFunc,
		Shown:           s.labels.shown,
		WantProgress:    below.progress.want,
		CurrentVersion:  below.GetCurrentResourceVersion,
		CompactRevision: raw.CompactRevision,
		MaxHistory:      b.cfg.MaxHistory,
		Undecodable:     func() bool { return undecodable.Swap(false) },
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
		NewFunc:             r.newFunc,
		NewListFunc:         r.newListFunc,
		Codec:               r.config.Codec,
		Clock:               slowTickClock{},
	})
	if err != nil {
		below.progress.stop()
		closeRaw()
		return nil, nil, fmt.Errorf("watch cache: %w", err)
	}
	// Disable the snapshots of the watch cache before it is filled, because the hub serves the lists that need them.
	// Each event would cost 2-3 KiB. A remaining snapshot would be used for all later versions.
	c.MarkConsistent(false)
	close(opened)
	below.cache.Store(c)
	delegator := cacher.NewCacheDelegator(c, below)
	s.inner, s.cache, s.readyWait, s.hub = delegator, c, defaultReadyWait, follower
	forget := b.registerHub(keys.root, follower)
	return s, func() {
		forget()
		below.progress.stop()
		follower.Close()
		delegator.Stop()
		c.Stop()
		s.progressRequests.Wait()
		closeRaw()
	}, nil
}

func (b *Backend) openEtcd(r resource, keys keyspace, named schema.GroupResource, undecodable *atomic.Bool) (storage.Interface, func(), error) {
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
		named, recordingTransformer{transformer}, cfg.LeaseManagerConfig, tolerantDecoder{decoder, b.reporter(cfg.GroupResource, keys)}, versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("etcd store: %w", err)
	}
	if unsafeDelete {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(s, cfg.GroupResource), s.Close, nil
	}
	return s, s.Close, nil
}

// cacheKeyFunc returns the watch cache's key function, which must not fail. An object that was not written through
// the API gets a key that only wildcard requests read.
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
			return k.root + noCluster + "/" + noCluster
		}
		return k.root + noCluster + "/" + url.PathEscape(object.GetNamespace()) + "/" + url.PathEscape(object.GetName()) + "/" + string(object.GetUID())
	}
}

// clusterField is a field of each object on the cache server. It cannot be the path of a real field.
const clusterField = "shardplane.io/cluster"

// withClusterField adds the logical cluster as a field, for requests for one logical cluster of all shards.
func withClusterField(getAttrs storage.AttrFunc) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := getAttrs(obj)
		if err != nil {
			return nil, nil, err
		}
		t, _ := tenantOf(obj, true)
		return l, withField(f, clusterField, string(t.cluster)), nil
	}
}
