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

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/storage"
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
func (d Data) Backend(t testing.TB, shards bool) *storage.Backend {
	t.Helper()
	backend, err := storage.NewBackend(storage.BackendConfig{Client: d.Server.Client(), Prefix: d.Prefix, ShardSegment: shards})
	require.NoError(t, err)
	return backend
}
