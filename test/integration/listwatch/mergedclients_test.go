package listwatch

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestMergedReflectors checks that informers and watchers of client-go follow all shards, also when a shard is killed and restarted.
func TestMergedReflectors(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops processes")
	}
	t.Parallel()
	m := newMerged(t, kit.Start(t, harness.Options{Mode: harness.Processes, Shards: 2}), "reflectors")
	m.create("root", "a")
	m.create("shard-1", "b")
	all := rest.CopyConfig(m.Proxy())
	all.Host += inAll
	anything, err := dynamic.NewForConfig(all)
	require.NoError(t, err)
	of := func(o *metav1.ListOptions) { o.LabelSelector = "of=" + m.of }
	informer := dynamicinformer.NewFilteredDynamicSharedInformerFactory(anything, 0, "", of).ForResource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Informer()
	var mu sync.Mutex
	seen := map[string]int{}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			mu.Lock()
			defer mu.Unlock()
			seen[obj.(metav1.Object).GetName()]++
		},
		DeleteFunc: func(obj any) {
			mu.Lock()
			defer mu.Unlock()
			if o, err := meta.Accessor(obj); err == nil {
				seen["deleted "+o.GetName()]++
			}
		},
	})
	require.NoError(t, err)
	kube := harness.Clientset(t, all, "")
	version := m.list().Metadata.ResourceVersion
	retry, err := watchtools.NewRetryWatcherWithContext(t.Context(), version, &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		of(&o)
		return kube.CoreV1().ConfigMaps("").Watch(ctx, o)
	}})
	require.NoError(t, err)
	for _, name := range []string{"first", "second"} {
		m.create("shard-1", name)
		require.Equal(t, name, (<-retry.ResultChan()).Object.(*corev1.ConfigMap).Name)
	}
	retry.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait() }()
	running.Go(func() { informer.RunWithContext(ctx) })
	m.Eventually("the informer syncs", informer.HasSynced)

	killed := m.Component("shard-1")
	names := []string{"a", "b", "first", "second"}
	for n := range 3 {
		killed.Kill()
		name := fmt.Sprintf("meanwhile-%d", n)
		m.create("root", name)
		killed.Start()
		after := fmt.Sprintf("after-%d", n)
		m.create("shard-1", after)
		names = append(names, name, after)
		m.Eventually("the informer contains all objects", func() bool { return len(informer.GetStore().ListKeys()) == len(names) })
	}
	m.write(http.StatusOK, "root", kit.JSONRequest(http.MethodDelete, "/a", ""))
	m.Eventually("the informer removes the deleted object", func() bool { return len(informer.GetStore().ListKeys()) == len(names)-1 })
	want := map[string]int{"deleted a": 1}
	for _, name := range names {
		want[name] = 1
	}
	m.Eventually("each object is reported once", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == len(want)
	})
	require.Equal(t, want, seen)
	require.Regexp(t, `^m1\.`, informer.LastSyncResourceVersion())
}

// TestMergedKubectl checks that kubectl lists and watches all shards, with the discovery cache of a logical cluster.
func TestMergedKubectl(t *testing.T) {
	t.Parallel()
	m := newMerged(t, kit.Shared(t), "mergedkubectl")
	m.create("root", "a")
	m.create("shard-1", "b")
	dir := t.TempDir()
	kubectl := func(cluster string, args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), harness.Kubectl(t), append([]string{"--kubeconfig", m.Kubeconfig(), "--cache-dir", dir, "--server", m.Proxy().Host + "/clusters/" + cluster}, args...)...) //nolint:gosec // arguments of the test
	}
	out, err := kubectl("root", "get", "configmaps", "-A").CombinedOutput()
	require.NoError(t, err, "%s", out)
	known, err := filepath.Glob(filepath.Join(dir, "discovery", "*", "clusters", "root"))
	require.NoError(t, err)
	require.Len(t, known, 1)
	require.NoError(t, exec.CommandContext(t.Context(), "cp", "-r", known[0], filepath.Join(filepath.Dir(known[0]), "_")).Run())
	for _, chunk := range []string{"0", "1", "500"} {
		out, err = kubectl("*", "get", "configmaps", "-A", "-l", "of="+m.of, "--chunk-size", chunk, "--no-headers").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, 2, strings.Count(string(out), "default"), "%s", out)
	}
	watching := kubectl("*", "get", "configmaps", "-A", "-l", "of="+m.of, "-w")
	read, err := watching.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watching.Start())
	defer func() {
		_ = watching.Process.Kill()
		_ = watching.Wait()
	}()
	lines := make(chan string)
	go func() {
		defer close(lines)
		var line []byte
		for one := make([]byte, 1); ; {
			if _, err := read.Read(one); err != nil {
				return
			}
			if line = append(line, one[0]); one[0] == '\n' {
				lines <- string(line)
				line = nil
			}
		}
	}()
	for _, want := range []string{"NAMESPACE", " a ", " b "} {
		require.Contains(t, <-lines, want)
	}
	m.create("shard-1", "c")
	require.Contains(t, <-lines, " c ")
	m.create("root", "d")
	require.Contains(t, <-lines, " d ")
}

// TestClientsThatCompareVersions checks clients that cannot be used because they compare versions as numbers.
func TestClientsThatCompareVersions(t *testing.T) {
	t.Parallel()
	m := newMerged(t, kit.Shared(t), "mergednumbers")
	m.create("root", "a")
	version := m.list().Items[0].ResourceVersion
	_, err := resourceversion.CompareResourceVersion(version, version)
	require.Error(t, err)

	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", ResourceVersion: version}}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	require.NoError(t, indexer.Add(obj))
	mutations := cache.NewIntegerResourceVersionMutationCache(klog.Logger{}, indexer, indexer, kit.Timeout, true)
	mutations.Mutation(obj)
	require.Panics(t, func() { _, _, _ = mutations.GetByKey("default/a") })

	m.readOwnWrites(inAll, false)
	m.readOwnWrites("/clusters/"+m.clusters["root"], true)
}

// readOwnWrites writes with a client of controller-runtime, and reads from a cache of a path, which waits for the version of the write.
func (m merged) readOwnWrites(cached string, reads bool) {
	m.T.Helper()
	at := func(path string) *rest.Config {
		config := rest.CopyConfig(m.Proxy())
		config.Host += path
		return config
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	caching, err := ctrlcache.New(at(cached), ctrlcache.Options{Mapper: mapper})
	require.NoError(m.T, err)
	ctx, cancel := context.WithCancel(m.T.Context())
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait() }()
	running.Go(func() { _ = caching.Start(ctx) })
	consistent := true
	client, err := ctrlclient.New(at("/clusters/"+m.clusters["root"]), ctrlclient.Options{
		Mapper: mapper, Cache: &ctrlclient.CacheOptions{Reader: caching, EnableReadYourWritesConsistency: &consistent},
	})
	require.NoError(m.T, err)
	written := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("own-%t", reads), Namespace: "default"}}
	require.NoError(m.T, client.Create(ctx, written))
	key := ctrlclient.ObjectKeyFromObject(written)
	var got corev1.ConfigMap
	m.Eventually("the cache contains the object", func() bool { return caching.Get(ctx, key, &got) == nil })
	if reads {
		require.NoError(m.T, client.Get(ctx, key, &got))
		return
	}
	soon, cancelSoon := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelSoon()
	require.ErrorContains(m.T, client.Get(soon, key, &got), "failed to wait for cache to catch up", "the cache cannot compare versions")
	require.NoError(m.T, client.Get(ctx, key, &got, ctrlclient.DisableReadYourWritesConsistency))
}
