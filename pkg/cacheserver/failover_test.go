package cacheserver_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationmarks"
)

// twoCaches are cache servers with a database each, a shard that pushes to both, and a reader of both.
type twoCaches struct {
	a, b   *cacheServer
	amber  *testShard
	shards dynamic.ResourceInterface

	caches   *client.Caches
	informer *client.Informer[*corev1alpha1.Shard]

	mu   sync.Mutex
	told []string
}

func newTwoCaches(t *testing.T, objects int) *twoCaches {
	t.Helper()
	w := &twoCaches{a: newCacheServer(t), b: &cacheServer{pki: newPKI(t), dataDir: t.TempDir()}, amber: newTestShard(t, "amber")}
	w.b.start(t)
	w.b.f = factory(t, w.b.pki.master(t, w.b.url))
	w.shards = in(t, w.amber.f, "root", shardsGVR)
	for n := range objects {
		create(t, w.shards, object(shardsGVR, "Shard", fmt.Sprintf("s-%02d", n), map[string]any{"baseURL": "https://x"}))
	}
	configs := []replication.Config{replicationConfig(t, w.amber, w.a), replicationConfig(t, w.amber, w.b)}
	for n, name := range []string{"a", "b"} {
		configs[n].CacheName, configs[n].Table = name, configs[0].Table
		markOften(&configs[n])
	}
	all, err := replication.NewAll(configs...)
	require.NoError(t, err)
	start(t, "", all.Run)
	w.read(t)
	w.waitFor(t, "the reader and both caches have all", func() error {
		for _, cache := range []*cacheServer{w.a, w.b} {
			list, err := in(t, cache.f.Shard("amber"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(list.Items) != objects {
				return fmt.Errorf("a cache has %d objects", len(list.Items))
			}
		}
		return w.has(objects)
	})
	w.news()
	return w
}

// has returns an error unless the reader has as many objects, and knows that these are all.
func (w *twoCaches) has(objects int) error {
	if has, lacks := w.informer.Lister().Len(), w.informer.Lacks([]string{"amber"}); has != objects || len(lacks) > 0 {
		return errors.Join(fmt.Errorf("the reader has %d objects, and lacks %v", has, lacks), w.informer.LastError())
	}
	return nil
}

// read has somebody read the caches.
func (w *twoCaches) read(t *testing.T) {
	t.Helper()
	var err error
	w.caches, err = client.NewCaches(replicationmarks.Read, client.Cache{Name: "a", Factory: w.a.f}, client.Cache{Name: "b", Factory: w.b.f})
	require.NoError(t, err)
	w.caches.SetTiming(client.CacheTiming{Probe: often, Away: 5 * often, BackProbe: often, Back: time.Second, MarksAge: often})
	everything := w.caches.Factory().Shard("*").Wildcard()
	marks := replicationmarks.Marks.Informer(everything, client.InformerOptions[*replicationmarks.ReplicationMark]{})
	note := func(mark *replicationmarks.ReplicationMark) { w.caches.Note(marks.KeyOf(mark).Shard, mark.Said()) }
	marks.AddEventHandler(client.Handler[*replicationmarks.ReplicationMark]{
		OnAdd:    func(mark *replicationmarks.ReplicationMark, _ bool) { note(mark) },
		OnUpdate: func(_, mark *replicationmarks.ReplicationMark) { note(mark) },
	})
	w.informer = kinds.Shards.Informer(everything, client.InformerOptions[*corev1alpha1.Shard]{})
	w.informer.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(shard *corev1alpha1.Shard, _ bool) { w.tell("add", shard) },
		OnUpdate: func(_, shard *corev1alpha1.Shard) { w.tell("update", shard) },
		OnDelete: func(shard *corev1alpha1.Shard, _ bool) { w.tell("delete", shard) },
	})
	start(t, "", marks.Run)
	start(t, "", w.informer.Run)
	start(t, "", w.caches.Run)
}

func (w *twoCaches) tell(kind string, shard *corev1alpha1.Shard) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, kind+" "+shard.Name)
}

// news returns what was told since it was called last.
func (w *twoCaches) news() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.told
	w.told = nil
	return told
}

func (w *twoCaches) waitFor(t *testing.T, what string, ok func() error) {
	t.Helper()
	var last error
	if !assert.Eventually(t, func() bool { last = ok(); return last == nil }, deadline, 50*time.Millisecond) {
		require.NoError(t, last, what)
	}
}

// waitTold waits until something was told.
func (w *twoCaches) waitTold(t *testing.T, what string) {
	t.Helper()
	w.waitFor(t, what, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.Contains(w.told, what) {
			return fmt.Errorf("told were %v", w.told)
		}
		return nil
	})
}

// TestReadersOfAServerThatIsBehind has readers come to a cache server that was away while things changed: they see
// nothing of what was.
func TestReadersOfAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	const objects = 20
	w := newTwoCaches(t, objects)
	require.Contains(t, w.informer.Lacks([]string{"amber", "blue"}), "blue", "nothing is known of it")
	w.b.stop()
	require.NoError(t, w.shards.Delete(t.Context(), "s-01", metav1.DeleteOptions{}))
	changed, err := w.shards.Get(t.Context(), "s-02", metav1.GetOptions{})
	require.NoError(t, err)
	changed.SetLabels(map[string]string{"changed": "true"})
	_, err = w.shards.Update(t.Context(), changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	create(t, w.shards, object(shardsGVR, "Shard", "new", map[string]any{"baseURL": "https://x"}))
	for _, what := range []string{"delete s-01", "update s-02", "add new"} {
		w.waitTold(t, what)
	}
	w.news()

	w.a.stop()
	w.b.start(t)
	eventually(t, "the other one is read", func() bool { return w.caches.Name() == "b" })
	create(t, w.shards, object(shardsGVR, "Shard", "after", map[string]any{"baseURL": "https://x"}))
	w.waitTold(t, "add after")
	require.Equal(t, []string{"add after"}, w.news())
	require.Equal(t, objects+1, w.informer.Lister().Len())
	obj, err := kinds.Shards.In(w.caches.Factory().Shard("amber").Cluster(rootPath)).Get(t.Context(), "after", metav1.GetOptions{})
	require.NoError(t, err, "requests go to the cache that is read, too")
	require.Equal(t, "after", obj.Name)
}
