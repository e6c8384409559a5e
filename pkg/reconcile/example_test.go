package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// withInformer calls f with a synced informer of ConfigMaps, one in each logical cluster.
func withInformer(f func(t testing.TB, server *clienttest.Server, informer *client.Informer[*corev1.ConfigMap]), clusters ...logicalcluster.Name) {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		server := clienttest.New(t, kinds.Scheme)
		for _, cluster := range clusters {
			server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "settings", Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()},
			}})
		}
		factory := factoryOf(t, server)
		informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
		stop := running(informer)
		if err := informer.WaitForSync(context.Background()); err != nil {
			panic(err)
		}
		f(t, server, informer)
		stop()
	})
}

func factoryOf(t testing.TB, server *clienttest.Server) *client.Factory {
	t.Helper()
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	return factory
}

func running(controller reconcile.Runnable) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			fmt.Println(err)
		}
	}
}

// sorted waits for n distinct texts and returns them in order, because keys of several sources may be processed repeatedly.
func sorted(texts <-chan string, n int) []string {
	all := sets.New[string]()
	for all.Len() < n {
		all.Insert(<-texts)
	}
	return sets.List(all)
}

// A controller processes the keys of the objects of an informer.
func ExampleController() {
	withInformer(func(_ testing.TB, _ *clienttest.Server, informer *client.Informer[*corev1.ConfigMap]) {
		worked := make(chan string, 10)
		failed := false
		var keyed reconcile.Keyed = informer
		controller := reconcile.New(reconcile.Config[client.Key]{
			Name: "example", Workers: 1, Sources: []reconcile.Source[client.Key]{reconcile.Keys(keyed)},
			Reconcile: func(_ context.Context, key client.Key) (reconcile.Result, error) {
				if !failed { // the error causes a retry
					failed = true
					return reconcile.Result{}, errors.New("temporary failure")
				}
				worked <- key.String()
				return reconcile.Result{}, nil
			},
		})
		var runnable reconcile.Runnable = controller
		stop := running(runnable)
		fmt.Println(sorted(worked, 2))
		stop()
	}, "one", "two")
	// Output: [one|default/settings two|default/settings]
}

// Keys may be of any comparable type and from any source.
func ExampleSource() {
	withInformer(func(t testing.TB, server *clienttest.Server, informer *client.Informer[*corev1.ConfigMap]) {
		t.Helper()
		worked := make(chan string, 10)
		var watched reconcile.Watched[*corev1.ConfigMap] = informer
		own := func(_ context.Context, queue reconcile.Queue[string]) (stop func(), err error) {
			queue.AddAfter("from a custom source", time.Millisecond)
			return func() {}, nil
		}
		stop := running(reconcile.New(reconcile.Config[string]{
			Name: "sources",
			Sources: []reconcile.Source[string]{
				own,
				reconcile.Once("when it starts"),
				reconcile.FromInformer(watched, func(obj *corev1.ConfigMap) []string { return []string{"name " + obj.Name} }),
				reconcile.OnDelete(informer, func(last *corev1.ConfigMap) []string {
					return []string{"deleted in " + logicalcluster.From(last).String()}
				}),
			},
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				worked <- key
				return reconcile.Result{}, nil
			},
		}))
		for _, text := range sorted(worked, 3) {
			fmt.Println(text)
		}
		server.Delete(t, kinds.ConfigMaps.GroupVersionResource, "", "one", "default", "settings")
		for _, text := range sorted(worked, 2) {
			fmt.Println(text)
		}
		stop()
	}, "one")
	// Output:
	// from a custom source
	// name settings
	// when it starts
	// deleted in one
	// name settings
}

// half is one half of all hashes, e.g. of a member of a ring.
type half struct{ client.Ranges }

func (h half) Begin(ctx context.Context, hash uint64) (context.Context, func(), bool) {
	owned := hash < 1<<63
	return ctx, func() {}, owned
}

func (h half) OnGain(f func(client.Ranges)) (remove func()) {
	f(h.Ranges)
	return func() {}
}

// A Gate, usually a ring.Ring, restricts the keys and reports newly assigned ranges.
func ExampleGained() {
	ranges, err := client.PartOf(client.ByCluster, 0, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	withInformer(func(_ testing.TB, _ *clienttest.Server, informer *client.Informer[*corev1.ConfigMap]) {
		worked := make(chan string, 10)
		var gate reconcile.Gate = half{ranges}
		var gains reconcile.Gains = half{ranges}
		stop := running(reconcile.New(reconcile.Config[client.Key]{
			Name: "gate", Gate: gate,
			Sources: []reconcile.Source[client.Key]{reconcile.Gained(informer, gains, func(obj *corev1.ConfigMap) []client.Key { return []client.Key{informer.KeyOf(obj)} })},
			Reconcile: func(_ context.Context, key client.Key) (reconcile.Result, error) {
				worked <- key.Cluster.String()
				return reconcile.Result{}, nil
			},
		}))
		fmt.Println(sorted(worked, 2))
		stop()
	}, "blue", "green", "red", "seven")
	// Output: [green seven]
}

type patches struct{}

func (patches) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, subresources ...string) (*corev1.Namespace, error) {
	fmt.Println(name, subresources, string(data))
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: "8"}}, nil
}

type stored struct{ of *corev1.Namespace }

func (s stored) Modify(_ context.Context, _ logicalcluster.Name, _ schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.of)
	if err != nil {
		return nil, err
	}
	obj := &unstructured.Unstructured{Object: content}
	return obj, change(obj)
}

// Commit writes the difference with optimistic concurrency.
func ExampleCommit() {
	old := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", UID: "u", ResourceVersion: "7"}}
	updated := old.DeepCopy()
	updated.Labels = map[string]string{"colour": "red"}
	updated.Status.Phase = corev1.NamespaceActive
	var patcher reconcile.Patcher[*corev1.Namespace] = patches{}
	written, err := reconcile.Commit(context.Background(), patcher, old, updated)
	fmt.Println(written.ResourceVersion, err)

	// A server writes its own statements with a single write.
	var objects reconcile.Objects = stored{old}
	written, err = reconcile.CommitStored(context.Background(), objects, corev1.Resource("namespaces"), patcher, old, updated)
	fmt.Println(written.Labels, written.Status.Phase, err)

	// Latest caches the object until the informer has observed it.
	var latest reconcile.Latest[*corev1.Namespace]
	latest.Wrote(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", UID: "u", ResourceVersion: "8"}})
	newest, _ := latest.Of(client.KeyOf(old), old, true)
	fmt.Println(newest.ResourceVersion)
	// Output:
	// team [] {"metadata":{"labels":{"colour":"red"},"resourceVersion":"7","uid":"u"}}
	// team [status] {"metadata":{"resourceVersion":"8","uid":"u"},"status":{"phase":"Active"}}
	// 8 <nil>
	// map[colour:red] Active <nil>
	// 8
}

// Turns spreads work for all keys over time.
func ExampleTurns() {
	turns := reconcile.Turns[string]{Interval: time.Second}
	now := time.Unix(1000, 0)
	fmt.Println(turns.Wait("a", now), turns.Wait("b", now), turns.Wait("a", now))
	// Output: 0s 1s 0s
}

// A manager runs the controllers with the placements of this replica.
func ExampleNewManager() {
	worked := make(chan string, 10)
	type deps struct{ text string }
	made := func(d deps) (reconcile.Made, error) {
		var needs []reconcile.Synced // informers
		return reconcile.Made{Needs: needs, Runnable: reconcile.New(reconcile.Config[string]{
			Name: "greeter", Sources: []reconcile.Source[string]{reconcile.Once(d.text)},
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				worked <- key
				return reconcile.Result{}, nil
			},
		})}, nil
	}
	catalogue := []reconcile.Descriptor[deps]{{Name: "greeter", Placement: reconcile.OnEveryReplica, New: made}, {Name: "other", Placement: reconcile.OnLeader}}
	placements := []reconcile.Placement{reconcile.OnEveryReplica}
	group, err := reconcile.NewManager(catalogue, deps{"hello"}, placements...)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(group.Names())
	registry := prometheus.NewRegistry() // which the program serves at /metrics
	ctx, cancel := context.WithCancel(reconcile.WithMetrics(context.Background(), registry))
	ended := make(chan error, 1)
	go func() { ended <- group.Run(ctx) }()
	fmt.Println(<-worked)
	families, err := registry.Gather()
	fmt.Println(families[0].GetName(), err)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// [greeter]
	// hello
	// shardplane_reconcile_controllers <nil>
	// <nil>
}

// A commit function sends no request if nothing has changed.
func ExampleCommitter() {
	withInformer(func(t testing.TB, server *clienttest.Server, informer *client.Informer[*corev1.ConfigMap]) {
		t.Helper()
		factory := factoryOf(t, server)
		configMap := informer.Lister().List(labels.Everything())[0]
		commit := reconcile.Committer(factory, kinds.ConfigMaps)
		_, err := commit(context.Background(), configMap, configMap) // no request, because nothing has changed
		fmt.Println(reconcile.KeysOf(configMap), reconcile.IgnoreNotFound(err))
	}, "one")
	// Output: [one|default/settings] <nil>
}

// Spread limits the rate of many keys that one event adds.
func ExampleSpread() {
	withInformer(func(_ testing.TB, _ *clienttest.Server, informer *client.Informer[*corev1.ConfigMap]) {
		worked := make(chan string, 200)
		many := func(*corev1.ConfigMap) (keys []string) {
			for i := range 60 {
				keys = append(keys, fmt.Sprint("spread ", i))
			}
			return keys
		}
		stop := running(reconcile.New(reconcile.Config[string]{
			Name: "spread",
			Sources: []reconcile.Source[string]{
				reconcile.SpreadFromInformer(informer, many),
				reconcile.FromChanges(informer, func(_, _ *corev1.ConfigMap) bool { return false }, func() []string { return []string{"all"} }),
				func(_ context.Context, queue reconcile.Queue[string]) (stop func(), err error) {
					reconcile.Spread(queue, []string{"one"})
					return func() {}, nil
				},
			},
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				worked <- key
				return reconcile.Result{}, nil
			},
		}))
		fmt.Println(len(sorted(worked, 62)))
		stop()
	}, "one")
	// Output: 62
}
