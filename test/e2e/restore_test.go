package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// shardplane runs the program and returns its output.
func shardplane(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), harness.Binary(t), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// server is a component with data that is saved and restored.
type server struct {
	component  string
	dir        string
	kubeconfig string
	context    string
	flags      []string // of snapshot restore
}

func (s server) file(c *harness.Cluster) string { return filepath.Join(c.Dir, s.component+".snapshot") }

func (s server) save(t *testing.T, c *harness.Cluster) {
	t.Helper()
	out := shardplane(t, "snapshot", "save", "--kubeconfig", filepath.Join(c.Dir, s.dir, s.kubeconfig), "--context", s.context, s.file(c))
	require.Contains(t, out, "sha256")
}

// restore replaces the data of a stopped server by the snapshot.
func (s server) restore(t *testing.T, c *harness.Cluster) {
	t.Helper()
	data := filepath.Join(c.Dir, s.dir, "data")
	require.NoError(t, os.Rename(filepath.Join(data, "etcd"), filepath.Join(data, "etcd.before")))
	out := shardplane(t, append(append([]string{"snapshot", "restore", "--data-dir", data}, s.flags...), s.file(c))...)
	require.Contains(t, out, "continuing at")
}

// objects contains the resource versions of objects, or of the originals of replicas, by name.
type objects map[string]string

func fetch(t *testing.T, config *rest.Config, path string) (status int, got objects) {
	t.Helper()
	u, err := url.Parse(config.Host)
	require.NoError(t, err)
	config = rest.CopyConfig(config)
	config.Host = u.Scheme + "://" + u.Host
	status, raw, err := harness.Send(t.Context(), config, http.MethodGet, path, nil, "")
	var list metav1.PartialObjectMetadataList
	if err != nil || status != http.StatusOK || json.Unmarshal(raw, &list) != nil {
		return status, nil
	}
	got = objects{}
	for _, item := range list.Items {
		version := item.ResourceVersion
		if original := item.Annotations["cache.kcp.io/original-resource-version"]; original != "" {
			version = original
		}
		got[item.Annotations["kcp.io/cluster"]+"/"+item.Namespace+"/"+item.Name] = version
	}
	return status, got
}

// clientGo follows the ConfigMaps of a logical cluster with an informer of client-go.
func clientGo(t *testing.T, config *rest.Config) cache.Store {
	t.Helper()
	c := harness.Clientset(t, config, "")
	factory := informers.NewSharedInformerFactory(c, 0)
	informer := factory.Core().V1().ConfigMaps().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	return informer.GetStore()
}

func versions[T metav1.Object](all []T) objects {
	got := objects{}
	for _, o := range all {
		got[o.GetAnnotations()["kcp.io/cluster"]+"/"+o.GetNamespace()+"/"+o.GetName()] = o.GetResourceVersion()
	}
	return got
}

func role(name string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"internal.kcp.io/replicate": "test"}}}
}

// writer creates ConfigMaps until it is stopped, and records the acknowledged ones.
type writer struct {
	mu           sync.Mutex
	acknowledged []string
}

func (w *writer) run(ctx context.Context, scope client.Scope, prefix string) {
	in := kinds.ConfigMaps.InNamespace(scope, "default")
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("%s-%d", prefix, n)
		_, err := in.Create(ctx, configMap("restored", name), metav1.CreateOptions{})
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

// TestRestore restores older snapshots, which were saved under load, while a front-proxy, informers and watches are running. Afterwards
// all of them must have the objects in etcd, and so must a second front-proxy that starts with an index from before the restore while
// the shards are stopped.
func TestRestore(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restores shards from backups")
	}
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Shards: 2,
		ExtraArgs:   map[string][]string{"front-proxy": {"--index-directory=" + t.TempDir()}},
		SecondProxy: []string{"--index-directory=" + t.TempDir()},
	})
	shards := []server{
		{"root", ".kcp-0", "admin.kubeconfig", "shard-base", []string{"--name", "root"}},
		{"shard-1", ".kcp-1", "admin.kubeconfig", "shard-base", []string{"--name", "shard-1"}},
	}
	cacheServer := server{"cache-server", ".kcp-cache", "cache.kubeconfig", "cache", []string{"--cache-server"}}
	proxy := harness.NewFactory(t, c.Proxy())
	kept := workspace(t, proxy, "root", "kept", "shard-1")
	workspace(t, proxy, "root", "doomed", "shard-1")
	scope := proxy.Cluster(path(kept))
	configMaps, roles := kinds.ConfigMaps.InNamespace(scope, "default"), kinds.ClusterRoles.In(harness.NewFactory(t, c.Shard(1)).Cluster(path(kept)))
	for _, name := range []string{"same", "changed", "removed"} {
		harness.Create(t, configMaps, configMap("restored", name))
		harness.Create(t, roles, role(name))
	}
	overProxy := watchConfigMaps(t, scope, "e2e=restored")
	wildcard := watchConfigMaps(t, harness.NewFactory(t, c.Shard(1)).Wildcard(), "e2e=restored")
	store := clientGo(t, harness.In(c.Proxy(), kept))

	// agree compares etcd, the cache server, and informers.
	const label = "?labelSelector=e2e%3Drestored"
	agree := func(when string) {
		t.Helper()
		var report string
		ok := assert.Eventually(t, func() bool {
			_, want := fetch(t, c.Shard(1), "/clusters/"+kept+"/api/v1/configmaps"+label)
			_, wantAll := fetch(t, c.Shard(1), "/clusters/*/api/v1/configmaps"+label)
			_, wantRoles := fetch(t, c.Shard(1), "/clusters/"+kept+"/apis/rbac.authorization.k8s.io/v1/clusterroles")
			_, replicas := fetch(t, c.Cache(), "/services/cache/shards/shard-1/clusters/"+kept+"/apis/rbac.authorization.k8s.io/v1/clusterroles")
			got := map[string]objects{"informer over the front-proxy": versions(overProxy.Lister().List(labels.Everything()))}
			var all []*corev1.ConfigMap
			for _, o := range store.List() {
				if m, ok := o.(*corev1.ConfigMap); ok && m.Labels["e2e"] != "" {
					all = append(all, m)
				}
			}
			got["client-go's informer"] = versions(all)
			report = ""
			if have := versions(wildcard.Lister().List(labels.Everything())); len(wantAll) == 0 || !maps.Equal(wantAll, have) {
				report = fmt.Sprintf("wildcard informer has %d of %d; ", len(have), len(wantAll))
			}
			for name, have := range got {
				if len(want) == 0 || !maps.Equal(want, have) {
					report += fmt.Sprintf("%s has %d of %d; ", name, len(have), len(want))
				}
			}
			if len(wantRoles) == 0 || !maps.Equal(wantRoles, replicas) {
				report += fmt.Sprintf("roles %v, replicas %v", wantRoles, replicas)
			}
			return report == ""
		}, testTimeout, 20*time.Millisecond)
		require.True(t, ok, "%s: %s", when, report)
	}
	agree("before")

	// Save while clients write.
	w := writer{}
	load, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for n := range 2 {
		working.Go(func() { w.run(load, scope, fmt.Sprint("load-", n)) })
	}
	require.Eventually(t, func() bool { return w.count() > 20 }, testTimeout, time.Millisecond)
	acknowledged := w.count()
	for _, s := range append(shards, cacheServer) {
		s.save(t, c)
	}
	saved := w.count()
	require.Eventually(t, func() bool { return w.count() > saved+20 }, testTimeout, time.Millisecond)
	stop()
	working.Wait()
	late := workspace(t, proxy, "root", "late", "shard-1")
	require.NoError(t, kinds.Workspaces.In(proxy.Cluster(path("root"))).Delete(t.Context(), "doomed", metav1.DeleteOptions{}))
	harness.Create(t, configMaps, configMap("restored", "late"))
	harness.Create(t, kinds.ConfigMaps.InNamespace(proxy.Cluster(path(late)), "default"), configMap("restored", "late"))
	harness.Create(t, roles, role("late"))
	require.NoError(t, configMaps.Delete(t.Context(), "removed", metav1.DeleteOptions{}))
	require.NoError(t, roles.Delete(t.Context(), "removed", metav1.DeleteOptions{}))
	changed := configMap("restored", "changed")
	changed.Data = map[string]string{"a": "b"}
	changed, err := configMaps.Update(t.Context(), changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		status, _ := fetch(t, c.Proxy(), "/clusters/root:doomed/api/v1/configmaps")
		return status == http.StatusForbidden || status == http.StatusNotFound
	}, testTimeout, 20*time.Millisecond)
	agree("after the snapshot")

	second := c.Proxy()
	second.Host = c.Component("front-proxy-2").URL
	require.Eventually(t, func() bool {
		status, _ := fetch(t, second, "/clusters/root:late/api/v1/configmaps")
		return status == http.StatusOK
	}, testTimeout, 20*time.Millisecond)
	c.Component("front-proxy-2").Stop()
	for _, s := range shards {
		c.Component(s.component).Stop()
	}
	for _, s := range shards {
		s.restore(t, c)
	}
	c.Component("front-proxy-2").Start()
	status, _ := fetch(t, second, "/clusters/root:late/api/v1/configmaps")
	require.Equal(t, http.StatusServiceUnavailable, status, "the shard of a workspace in the index is stopped")
	for _, s := range shards {
		c.Component(s.component).Start()
	}
	agree("after the shards were restored")
	isRestored(t, c, kept, late, w.acknowledged[:acknowledged], changed.ResourceVersion)

	c.Component(cacheServer.component).Stop()
	cacheServer.restore(t, c)
	c.Component(cacheServer.component).Start()
	harness.Create(t, roles, role("new"))
	agree("after the cache server was restored")
}

// isRestored checks the restored state with new clients.
func isRestored(t *testing.T, c *harness.Cluster, kept, late string, acknowledged []string, before string) {
	t.Helper()
	configMaps := kinds.ConfigMaps.InNamespace(harness.NewFactory(t, c.Proxy()).Cluster(path(kept)), "default")
	list := harness.List(t, configMaps, metav1.ListOptions{})
	var names []string
	for _, m := range list.Items {
		names = append(names, m.Name)
	}
	require.Subset(t, names, append(slices.Clone(acknowledged), "same", "changed", "removed"), "writes before the snapshot")
	require.NotContains(t, names, "late")
	restored := harness.Get(t, configMaps, "changed")
	require.Empty(t, restored.Data)

	second := c.Proxy()
	second.Host = c.Component("front-proxy-2").URL
	for path, want := range map[string][]int{
		"/clusters/root:doomed/api/v1/configmaps":  {http.StatusOK},
		"/clusters/root:late/api/v1/configmaps":    {http.StatusForbidden, http.StatusNotFound},
		"/clusters/" + late + "/api/v1/configmaps": {http.StatusForbidden, http.StatusNotFound},
	} {
		for _, proxy := range []*rest.Config{c.Proxy(), second} {
			require.Eventually(t, func() bool {
				status, _ := fetch(t, proxy, path)
				return slices.Contains(want, status)
			}, testTimeout, 20*time.Millisecond, "%s of %s did not return one of %v", path, proxy.Host, want)
		}
	}

	// If a version is from before the restore, it must be expired, and must not be used again.
	for _, version := range []string{before, restored.ResourceVersion} {
		w, err := configMaps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		if err == nil {
			event := <-w.ResultChan()
			w.Stop()
			err = apierrors.FromObject(event.Object)
		}
		require.True(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err), "%v", err)
	}
	changed := configMap("restored", "changed")
	changed.ResourceVersion = before
	_, err := configMaps.Update(t.Context(), changed, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	created := harness.Create(t, configMaps, configMap("restored", "new"))
	require.Greater(t, len(created.ResourceVersion), len(before), "%s after %s", created.ResourceVersion, before)
}
