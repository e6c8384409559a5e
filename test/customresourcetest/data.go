// Package customresourcetest contains helpers for tests of custom resources: an etcd shared by the tests of a
// package, an API server with clients, and a definition that uses all features.
package customresourcetest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/etcd"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// Deadline limits the wait for an expected event, and Tick is the polling interval.
const (
	Deadline = 30 * time.Second
	Tick     = 5 * time.Millisecond
)

var shared struct {
	mu       sync.Mutex
	db       *etcd.Server
	dir      string
	prefixes atomic.Int64
}

// Main runs the tests of a package, stops their etcd, and fails if goroutines remain.
func Main(m *testing.M) {
	goleak.VerifyTestMain(tests{m},
		// Upstream sleeps up to three seconds after reads that wait for a fresh cache, and one second in the
		// teardown of serving info.
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		goleak.IgnoreAnyFunction("k8s.io/apiextensions-apiserver/pkg/apiserver.(*crdHandler).tearDown"),
		goleak.IgnoreAnyFunction("k8s.io/apiextensions-apiserver/pkg/apiserver.(*crdHandler).tearDown.func1"))
}

type tests struct{ m *testing.M }

func (t tests) Run() int {
	code := t.m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.db != nil {
		shared.db.Stop()
		_ = os.RemoveAll(shared.dir)
	}
	return code
}

// Data is a part of the shared etcd for one test.
type Data struct {
	Server *etcd.Server
	Prefix string
}

// NewData returns an empty part of the shared etcd.
func NewData(t testing.TB) Data {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.db == nil {
		dir, err := os.MkdirTemp("", "etcd") //nolint:usetesting // the etcd outlives the test
		require.NoError(t, err)
		db, err := etcd.Start(context.WithoutCancel(t.Context()), etcd.Config{DataDir: dir, UnsafeNoFsync: true})
		require.NoError(t, err)
		shared.db, shared.dir = db, dir
	}
	return Data{Server: shared.db, Prefix: fmt.Sprintf("/test-%d", shared.prefixes.Add(1))}
}

// Backend returns multi-tenant storage for the data. shards is set if keys have a segment for the shard.
func (d Data) Backend(t testing.TB, shards bool) *multitenant.Backend {
	t.Helper()
	backend, err := multitenant.NewBackend(multitenant.BackendConfig{Client: d.Server.Client(), Prefix: d.Prefix, ShardSegment: shards})
	require.NoError(t, err)
	return backend
}

// Storage returns the storage options for codecs.
type Storage = func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter

// Wrap wraps the store of a resource and its destroy function.
type Wrap func(resource schema.GroupResource, store storage.Interface, destroy factory.DestroyFunc) (storage.Interface, factory.DestroyFunc)

// Wrapped returns of with its stores wrapped.
func Wrapped(of Storage, wrap Wrap) Storage {
	return func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter {
		return wrappedGetter{of(codecFor), wrap}
	}
}

type wrappedGetter struct {
	generic.RESTOptionsGetter
	wrap Wrap
}

func (g wrappedGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	inner := options.Decorator
	options.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, trigger storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := inner(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, trigger, indexers)
		if err != nil {
			return nil, nil, err
		}
		store, destroy = g.wrap(resource, store, destroy)
		return store, destroy, nil
	}
	return options, nil
}
