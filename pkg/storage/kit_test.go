package storage

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// deadline is the timeout of all waits.
const deadline = 30 * time.Second

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
	podsGR = schema.GroupResource{Resource: "pods"}
)

func TestMain(m *testing.M) {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	// As in the servers. Tests that set the gate must not run in parallel.
	utilruntime.Must(utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.ShardedListAndWatch): true}))
	// Parallel tests mostly wait. The command line is parsed later, so -parallel takes precedence.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(oneEtcd{m},
		// Upstream's timer for reads that wait for a fresh cache runs for three seconds.
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"))
}

// common is the etcd of tests that use a prefix of their own.
var common struct {
	sync.Once

	server *etcd.Server
	err    error
	dir    string
	users  atomic.Int64
}

// oneEtcd stops the common etcd after the tests.
type oneEtcd struct{ *testing.M }

func (m oneEtcd) Run() int {
	code := m.M.Run()
	if common.server != nil {
		common.server.Stop()
	}
	if err := os.RemoveAll(common.dir); err != nil {
		return max(code, 1)
	}
	return code
}

// commonEtcd returns the common etcd and a unique prefix.
func commonEtcd(tb testing.TB) (server *etcd.Server, prefix string) {
	tb.Helper()
	common.Do(func() {
		if common.dir, common.err = os.MkdirTemp("", "storage-test"); common.err == nil { //nolint:usetesting // tests share it
			common.server, common.err = etcd.Start(context.WithoutCancel(tb.Context()), etcd.Config{DataDir: common.dir, UnsafeNoFsync: true})
		}
	})
	require.NoError(tb, common.err)
	return common.server, fmt.Sprintf("/test-%d", common.users.Add(1))
}

// startEtcd starts an etcd for a test that depends on its revisions, compactions or shutdown.
func startEtcd(tb testing.TB) *etcd.Server {
	tb.Helper()
	server, err := etcd.Start(tb.Context(), etcd.Config{DataDir: tb.TempDir(), UnsafeNoFsync: true})
	require.NoError(tb, err)
	tb.Cleanup(server.Stop)
	return server
}

// backendOf returns a backend, by default on the common etcd.
func backendOf(tb testing.TB, cfg BackendConfig) *Backend {
	tb.Helper()
	if cfg.Client == nil {
		if _, measured := tb.(*testing.B); measured {
			cfg.Client = startEtcd(tb).Client()
		} else {
			server, prefix := commonEtcd(tb)
			cfg.Client, cfg.Prefix = server.Client(), prefix
		}
	}
	b, err := NewBackend(cfg)
	require.NoError(tb, err)
	tb.Cleanup(b.Close)
	require.Eventually(tb, func() bool { return b.Ready(tb.Context()) == nil }, deadline, time.Millisecond)
	return b
}

func podCodec(tb testing.TB) runtime.Codec {
	tb.Helper()
	if _, ok := tb.(*testing.T); ok {
		return apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion)
	}
	return codecs.LegacyCodec(examplev1.SchemeGroupVersion)
}

func podKey(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/pods/", obj) }

// open opens the storage of pods, or of a resource with the same type, and waits until its watch cache and hub are
// filled, because they would miss earlier events.
func open(tb testing.TB, b *Backend, resource schema.GroupResource) *tenantStorage {
	tb.Helper()
	s := openWith(tb, b, resource, podCodec(tb), podKey)
	require.NoError(tb, s.cache.Wait(tb.Context()))
	require.NoError(tb, s.hub.WaitFresh(tb.Context(), 0))
	return s
}

func openWith(tb testing.TB, b *Backend, resource schema.GroupResource, codec runtime.Codec, keyFunc func(runtime.Object) (string, error)) *tenantStorage {
	tb.Helper()
	cfg := b.storageConfig(resource, codec)
	s, destroy, err := b.Decorator(cfg, "/pods", keyFunc, newObject, newList, podAttrs, nil, nil)
	require.NoError(tb, err)
	tb.Cleanup(destroy)
	return s.(*tenantStorage)
}

func newObject() runtime.Object { return &example.Pod{} }
func newList() runtime.Object   { return &example.PodList{} }

// openRaw opens the storage of pods below the watch cache.
func openRaw(tb testing.TB, b *Backend, codec runtime.Codec) storage.Interface {
	tb.Helper()
	pods := resource{config: b.storageConfig(podsGR, codec), newFunc: newObject, newListFunc: newList}
	raw, closeRaw, err := b.openEtcd(pods, keyspace{root: "/pods/"}, podsGR, new(atomic.Bool))
	require.NoError(tb, err)
	tb.Cleanup(closeRaw)
	return raw
}

func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("not a pod: %T", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

func in(ctx context.Context, cluster string) context.Context {
	return request.WithClusterName(ctx, logicalcluster.Name(cluster))
}

func newPod(namespace, name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func create(ctx context.Context, tb testing.TB, s storage.Interface, pod *example.Pod) *example.Pod {
	tb.Helper()
	out := &example.Pod{}
	require.NoError(tb, s.Create(ctx, "/pods/"+pod.Namespace+"/"+pod.Name, pod, out, 0))
	return out
}

func listOpts() storage.ListOptions {
	return storage.ListOptions{Predicate: everything(), Recursive: true}
}

func everything() storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: podAttrs}
}

func list(ctx context.Context, tb testing.TB, s storage.Interface, key string, opts storage.ListOptions) *example.PodList {
	tb.Helper()
	pods := &example.PodList{}
	require.NoError(tb, s.GetList(ctx, key, opts, pods))
	return pods
}

// names returns cluster|namespace/name of each pod.
func names(pods ...example.Pod) []string {
	found := make([]string, 0, len(pods))
	for i := range pods {
		found = append(found, nameOf(&pods[i]))
	}
	return found
}

func nameOf(pod *example.Pod) string {
	return string(logicalcluster.From(pod)) + "|" + pod.Namespace + "/" + pod.Name
}

func next(tb testing.TB, w watch.Interface) watch.Event {
	tb.Helper()
	select {
	case event, ok := <-w.ResultChan():
		require.True(tb, ok, "the watch ended")
		event.Object = hub.Unwrap(event.Object)
		return event
	case <-time.After(deadline):
		require.FailNow(tb, "no event")
		return watch.Event{}
	}
}

// watching opens a watch until the end of the test.
func watching(
	ctx context.Context, tb testing.TB, s storage.Interface, key string, opts storage.ListOptions,
) watch.Interface {
	tb.Helper()
	w, err := s.Watch(ctx, key, opts)
	require.NoError(tb, err)
	tb.Cleanup(w.Stop)
	return w
}

func errorOf(_ watch.Interface, err error) error { return err }

func watchFrom(ctx context.Context, tb testing.TB, s storage.Interface, key, rv string, opts storage.ListOptions) watch.Interface {
	tb.Helper()
	opts.ResourceVersion = rv
	return watching(ctx, tb, s, key, opts)
}

func changing(change func(pod *example.Pod)) storage.UpdateFunc {
	return func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		change(obj.(*example.Pod))
		return obj, nil, nil
	}
}

// relabel returns an update that changes a label.
func relabel(value string) storage.UpdateFunc {
	return changing(func(pod *example.Pod) { pod.Labels = map[string]string{"value": value} })
}

func update(ctx context.Context, tb testing.TB, s storage.Interface, key string, how storage.UpdateFunc) *example.Pod {
	tb.Helper()
	out := &example.Pod{}
	require.NoError(tb, s.GuaranteedUpdate(ctx, key, out, false, nil, how, nil))
	return out
}

func touch(ctx context.Context, tb testing.TB, s storage.Interface, key string, i int) {
	tb.Helper()
	update(ctx, tb, s, key, relabel(fmt.Sprint(i)))
}

func remove(ctx context.Context, tb testing.TB, s storage.Interface, key string) *example.Pod {
	tb.Helper()
	out := &example.Pod{}
	require.NoError(tb, s.Delete(ctx, key, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	return out
}
