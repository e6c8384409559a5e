package cacheserver_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationmarks"
	"github.com/shardplane/shardplane/test/harness"
)

// balancer is the one address of several servers: it hands connections to one of them.
type balancer struct {
	url string

	mu   sync.Mutex
	port int
	open map[net.Conn]struct{}
}

func newBalancer(t *testing.T, port int) *balancer {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{url: "https://" + listener.Addr().String(), port: port, open: map[net.Conn]struct{}{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { b.forward(from) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		b.to(0)
		running.Wait()
	})
	return b
}

func (b *balancer) forward(from net.Conn) {
	b.mu.Lock()
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", b.port))
	if err != nil {
		b.mu.Unlock()
		_ = from.Close()
		return
	}
	b.open[from], b.open[to] = struct{}{}, struct{}{}
	b.mu.Unlock()
	var copying sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		copying.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	copying.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, from)
	delete(b.open, to)
}

// to breaks all connections, as the death of the server does, and hands new ones to another one.
func (b *balancer) to(port int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.port = port
	for conn := range b.open {
		_ = conn.Close()
	}
}

// told is what a reader was told of each object, in order.
type told struct {
	mu     sync.Mutex
	events map[types.UID][]toldEvent
	wrong  []string
}

type toldEvent struct{ kind, version string }

func newTold() *told { return &told{events: map[types.UID][]toldEvent{}} }

// add notes an event, and what is wrong with it: an object is added once, at first, then gets newer, and is deleted once.
func (l *told) add(kind string, shard *corev1alpha1.Shard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, before := toldEvent{kind, shard.ResourceVersion}, l.events[shard.UID]
	l.events[shard.UID] = append(before, now)
	switch {
	case len(before) == 0:
		if kind == "add" {
			return
		}
	case kind == "delete":
		if before[len(before)-1].kind != "delete" {
			return
		}
	case kind == "update" && before[len(before)-1].kind != "delete":
		if order, err := resourceversion.CompareResourceVersion(before[len(before)-1].version, now.version); err == nil && order < 0 {
			return
		}
	}
	l.wrong = append(l.wrong, fmt.Sprintf("%s: %v after %v", shard.Name, now, before))
}

// last returns the last event of each object.
func (l *told) last() map[types.UID]toldEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[types.UID]toldEvent{}
	for uid, events := range l.events {
		all[uid] = events[len(events)-1]
	}
	return all
}

// watched are the events that one server tells from a version on, until it stops.
type watched struct {
	mu     sync.Mutex
	events []string
	ended  chan struct{}
}

func watchFrom(t *testing.T, shards dynamic.ResourceInterface, version string) *watched {
	t.Helper()
	stream, err := shards.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	require.NoError(t, err)
	w := &watched{ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for event := range stream.ResultChan() {
			if obj, ok := event.Object.(*unstructured.Unstructured); ok && event.Type != watch.Bookmark && event.Type != watch.Error {
				w.mu.Lock()
				w.events = append(w.events, fmt.Sprint(event.Type, " ", obj.GetName(), " ", obj.GetResourceVersion()))
				w.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		stream.Stop()
		<-w.ended
	})
	return w
}

func (w *watched) first(n int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.events[:min(n, len(w.events))]...)
}

func (w *watched) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events)
}

// sharedCache are two cache servers on one etcd behind one address, a shard that pushes there, and a reader.
type sharedCache struct {
	replicas [2]*cacheServer
	balancer *balancer
	shards   dynamic.ResourceInterface
	config   replication.Config
	told     *told
	reader   *client.Informer[*corev1alpha1.Shard]
	writes   int
}

func newSharedCache(t *testing.T) *sharedCache {
	t.Helper()
	checkLeaks(t)
	data, p := harness.Etcd(t, transport.TLSInfo{}), newPKI(t)
	w := &sharedCache{told: newTold()}
	for n := range w.replicas {
		r := &cacheServer{pki: p, change: []func(*cacheserver.Options){func(o *cacheserver.Options) { o.Etcd.Servers = []string{data} }}}
		r.start(t)
		r.f = factory(t, p.master(t, r.url))
		w.replicas[n] = r
	}
	w.balancer = newBalancer(t, w.replicas[0].port)
	amber := newTestShard(t, "amber")
	w.shards = in(t, amber.f, "root", shardsGVR)
	all := factory(t, p.master(t, w.balancer.url))
	w.config, _ = replicate(t, amber, &cacheServer{f: all}, withoutAudits, markOften, verifyOften)
	caches, err := client.NewCaches(replicationmarks.Read, client.Cache{Name: "shared", Factory: all})
	require.NoError(t, err)
	start(t, "", caches.Run)
	w.reader = kinds.Shards.Informer(caches.Factory().Shard("*").Wildcard(), client.InformerOptions[*corev1alpha1.Shard]{})
	w.reader.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(shard *corev1alpha1.Shard, _ bool) { w.told.add("add", shard) },
		OnUpdate: func(_, shard *corev1alpha1.Shard) { w.told.add("update", shard) },
		OnDelete: func(shard *corev1alpha1.Shard, _ bool) { w.told.add("delete", shard) },
	})
	start(t, "", w.reader.Run)
	return w
}

// write creates, changes and deletes objects on the shard.
func (w *sharedCache) write(t *testing.T, times int) {
	t.Helper()
	for range times {
		n := w.writes
		w.writes++
		create(t, w.shards, object(shardsGVR, "Shard", fmt.Sprintf("s-%03d", n), map[string]any{"baseURL": "https://x"}))
		_, err := w.shards.Patch(t.Context(), fmt.Sprintf("s-%03d", n-n%5), types.MergePatchType, fmt.Appendf(nil, `{"spec":{"baseURL":"https://%d"}}`, n), metav1.PatchOptions{})
		require.NoError(t, err)
		if n%5 == 4 {
			require.NoError(t, w.shards.Delete(t.Context(), fmt.Sprintf("s-%03d", n-2), metav1.DeleteOptions{}))
		}
	}
}

// knowsAll waits until the reader knows what the shard has, each version of which it was told last.
func (w *sharedCache) knowsAll(t *testing.T) {
	t.Helper()
	list, err := w.shards.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	eventually(t, "the reader knows everything", func() bool {
		last, there := w.told.last(), 0
		for _, event := range last {
			if event.kind != "delete" {
				there++
			}
		}
		for i := range list.Items {
			if last[list.Items[i].GetUID()].version != list.Items[i].GetResourceVersion() {
				return false
			}
		}
		return there == len(list.Items)
	})
	require.Equal(t, len(list.Items), w.reader.Lister().Len())
	require.Empty(t, w.told.wrong)
}

// TestReplicasOfOneCache has two cache servers serve what is in one etcd: their streams are the same, event by event,
// and who reads or pushes goes on at the other one when one dies amid all that.
func TestReplicasOfOneCache(t *testing.T) {
	w := newSharedCache(t)
	a, b := w.replicas[0], w.replicas[1]
	w.write(t, 10)
	w.knowsAll(t)
	restarts := startsOver(t)

	at := func(r *cacheServer) dynamic.ResourceInterface { return in(t, r.f.Shard("*"), "*", shardsGVR) }
	_, err := at(b).List(t.Context(), metav1.ListOptions{}) // its watch cache begins with the first request
	require.NoError(t, err)
	list, err := at(a).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	streams := [2]*watched{watchFrom(t, at(a), list.GetResourceVersion()), watchFrom(t, at(b), list.GetResourceVersion())}
	w.write(t, 20)
	w.balancer.to(b.port) // amid what is being pushed, and read
	stopping := make(chan struct{})
	go func() {
		defer close(stopping)
		a.stop()
	}()
	w.write(t, 20)
	<-stopping
	<-streams[0].ended
	w.write(t, 10)
	w.knowsAll(t)
	requireTrue(t, w.config)

	t.Log("what both have told is the same, and at the second one it goes on where the first one has ended")
	n := streams[0].len()
	require.NotZero(t, n)
	eventually(t, "the other one has told more", func() bool { return streams[1].len() > n })
	require.Equal(t, streams[0].first(n), streams[1].first(n))

	t.Log("the first one comes back, with what happened meanwhile, and the second one dies")
	a.start(t)
	w.write(t, 10)
	again, err := at(a).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	other, err := at(b).List(t.Context(), metav1.ListOptions{ResourceVersion: again.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.NoError(t, err)
	require.Equal(t, again.Items, other.Items)
	w.balancer.to(a.port)
	b.stop()
	w.write(t, 20)
	w.knowsAll(t)
	requireTrue(t, w.config)
	b.start(t)
	var digests [2]string
	eventually(t, "both tell the same digests: between the two requests the shard may mark once more", func() bool {
		for n, r := range w.replicas {
			var code int
			code, digests[n] = get(t, httpClient(t, r.pki.master(t, r.url)), r.url+"/services/cache/shards/amber/digests")
			require.Equal(t, http.StatusOK, code)
		}
		return digests[0] == digests[1]
	})
	require.Equal(t, restarts, startsOver(t), "nobody took one for a cache with other data") //nolint:testifylint // a whole number
}
