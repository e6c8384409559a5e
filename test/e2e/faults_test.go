package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

func factory(t *testing.T, config *rest.Config) *client.Factory {
	t.Helper()
	f, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(f.CloseIdleConnections)
	return f
}

func path(p string) logicalcluster.Path { return logicalcluster.NewPath(p) }

// workspace creates a workspace on a shard, waits until it is Ready and returns
// the name of its logical cluster.
func workspace(t *testing.T, proxy *client.Factory, parent, name, shard string) string {
	t.Helper()
	in := kinds.Workspaces.In(proxy.Cluster(path(parent)))
	ws, err := in.Create(t.Context(), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: tenancyv1alpha1.WorkspaceSpec{Location: &tenancyv1alpha1.WorkspaceLocation{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		ws, err = in.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	}, testTimeout, 10*time.Millisecond, "workspace %s:%s becomes Ready", parent, name)
	return ws.Spec.Cluster
}

// seen records what an informer was told.
type seen struct {
	mu      sync.Mutex
	added   map[string]int
	deleted map[string]int
}

func watchConfigMaps(t *testing.T, scope client.Scope, label string) (*client.Informer[*corev1.ConfigMap], *seen) {
	t.Helper()
	s := &seen{added: map[string]int{}, deleted: map[string]int{}}
	informer := kinds.ConfigMaps.Informer(scope, client.InformerOptions[*corev1.ConfigMap]{LabelSelector: label})
	informer.AddEventHandler(client.Handler[*corev1.ConfigMap]{
		OnAdd: func(obj *corev1.ConfigMap, _ bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.added[informer.KeyOf(obj).String()]++
		},
		OnDelete: func(last *corev1.ConfigMap, _ bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.deleted[informer.KeyOf(last).String()]++
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := informer.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return informer, s
}

// configMap has the label that a test's informers select by.
func configMap(test, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"e2e": test}}}
}

// TestWildcardInformersSeeEverythingOnce creates same-named objects in logical
// clusters of both shards; a wildcard informer on each shard sees its own, and
// together they see each object exactly once.
func TestWildcardInformersSeeEverythingOnce(t *testing.T) {
	c := processes.Get(t)
	proxy := factory(t, c.Proxy())
	var informers []*seen
	for n := range 2 {
		_, s := watchConfigMaps(t, factory(t, c.Shard(n)).Wildcard(), "e2e=once")
		informers = append(informers, s)
	}
	want := map[string]bool{}
	for n := range 6 {
		cluster := workspace(t, proxy, "root", fmt.Sprintf("w%d", n), []string{"root", "shard-1"}[n%2])
		for _, name := range []string{"same", "other"} {
			_, err := kinds.ConfigMaps.InNamespace(proxy.Cluster(path(cluster)), "default").Create(t.Context(), configMap("once", name), metav1.CreateOptions{})
			require.NoError(t, err)
			want[client.Key{Cluster: logicalcluster.Name(cluster), Namespace: "default", Name: name}.String()] = true
		}
	}
	require.Eventually(t, func() bool {
		got := map[string]int{}
		for _, s := range informers {
			s.mu.Lock()
			for key, n := range s.added {
				got[key] += n
			}
			s.mu.Unlock()
		}
		for key, n := range got {
			require.True(t, want[key], "unexpected %s", key)
			require.Equal(t, 1, n, "%s was seen %d times", key, n)
		}
		return len(got) == len(want)
	}, testTimeout, 20*time.Millisecond)
}

// writer creates ConfigMaps for as long as it runs and remembers which of them
// the server acknowledged.
type writer struct {
	// test is what the objects' label says.
	test string

	mu           sync.Mutex
	acknowledged []string
}

func (w *writer) run(ctx context.Context, scope client.Scope, prefix string) {
	in := kinds.ConfigMaps.InNamespace(scope, "default")
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("%s-%d", prefix, n)
		_, err := in.Create(ctx, configMap(w.test, name), metav1.CreateOptions{})
		if err == nil {
			w.mu.Lock()
			w.acknowledged = append(w.acknowledged, name)
			w.mu.Unlock()
		}
	}
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acknowledged)
}

// TestKilledShardLosesNothing kills a shard in the middle of writes, with kill
// -9, and finds every write that it acknowledged after the restart.
func TestKilledShardLosesNothing(t *testing.T) {
	c := processes.Get(t)
	proxy := factory(t, c.Proxy())
	cluster := workspace(t, proxy, "root", "victim", "shard-1")
	scope := proxy.Cluster(path(cluster))

	for round := range 3 {
		w := writer{test: "killed"}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() { w.run(ctx, scope, fmt.Sprintf("r%d-w%d", round, n)) })
		}
		require.Eventually(t, func() bool { return w.count() >= 50 }, testTimeout, time.Millisecond)
		c.Component("shard-1").Kill()
		cancel()
		wg.Wait()
		c.Component("shard-1").Start()

		in := kinds.ConfigMaps.InNamespace(factory(t, c.Shard(1)).Cluster(path(cluster)), "default")
		list, err := in.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		have := map[string]bool{}
		for _, obj := range list.Items {
			have[obj.Name] = true
		}
		for _, name := range w.acknowledged {
			require.True(t, have[name], "round %d: %s was acknowledged and is lost", round, name)
		}
		require.Eventually(t, func() bool { // and the front-proxy finds the shard again
			_, err := kinds.ConfigMaps.InNamespace(scope, "default").Get(t.Context(), w.acknowledged[0], metav1.GetOptions{})
			return err == nil
		}, testTimeout, 10*time.Millisecond)
	}
}

// TestRestartsUnderAWatch restarts every component while an informer watches
// through the front-proxy and others write. In the end the informer holds what
// the server holds, and was told of each object exactly once.
func TestRestartsUnderAWatch(t *testing.T) {
	c := processes.Get(t)
	proxy := factory(t, c.Proxy())
	for _, shard := range []string{"root", "shard-1"} {
		workspace(t, proxy, "root", "on-"+shard, shard)
	}
	type follower struct {
		scope    client.Scope
		informer *client.Informer[*corev1.ConfigMap]
		seen     *seen
		writer   writer
	}
	followers := map[string]*follower{}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, shard := range []string{"root", "shard-1"} {
		f := &follower{writer: writer{test: "written"}, scope: proxy.Cluster(path("root:on-" + shard))}
		f.informer, f.seen = watchConfigMaps(t, f.scope, "e2e=written")
		wg.Go(func() { f.writer.run(ctx, f.scope, shard) })
		followers[shard] = f
	}
	for _, name := range []string{"shard-1", "root", "cache-server", "front-proxy"} {
		before := map[string]int{}
		for shard, f := range followers {
			before[shard] = f.writer.count()
		}
		c.Component(name).Restart()
		for shard, f := range followers {
			require.Eventually(t, func() bool { return f.writer.count() > before[shard]+10 }, testTimeout, 10*time.Millisecond,
				"writes on %s go on after the restart of %s", shard, name)
		}
	}
	cancel()
	wg.Wait()

	for shard, f := range followers {
		var list *corev1.ConfigMapList
		// A write that nobody waits for any more may still come.
		require.Eventually(t, func() bool {
			var err error
			list, err = kinds.ConfigMaps.InNamespace(f.scope, "default").List(t.Context(), metav1.ListOptions{LabelSelector: "e2e=written"})
			f.seen.mu.Lock()
			defer f.seen.mu.Unlock()
			// Handlers are told after the lister has it.
			return err == nil && f.informer.Lister().Len() == len(list.Items) && len(f.seen.added) == len(list.Items)
		}, testTimeout, 10*time.Millisecond, "the informer holds what the server holds, and has told of it")
		require.GreaterOrEqual(t, len(list.Items), f.writer.count())
		f.seen.mu.Lock()
		defer f.seen.mu.Unlock()
		for _, obj := range list.Items {
			key := f.informer.KeyOf(&obj).String()
			require.Equal(t, 1, f.seen.added[key], "%s on %s", key, shard)
			require.Zero(t, f.seen.deleted[key], "%s on %s was reported as deleted", key, shard)
		}
	}

	_, err := kinds.ConfigMaps.InNamespace(followers["root"].scope, "default").Get(t.Context(), "never", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
