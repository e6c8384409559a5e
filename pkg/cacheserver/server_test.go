package cacheserver_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/replication"
)

func do(t testing.TB, c *http.Client, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	response, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(response)
}

func httpClient(t testing.TB, config *rest.Config) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(c.Transport) })
	return c
}

// TestServer sends requests to one server. Its first parts list the Shards of all shards, and delete theirs.
func TestServer(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	for _, part := range []struct {
		name string
		run  func(t *testing.T, cache *cacheServer)
	}{
		{"isolation", testIsolation}, {"watch of all shards", testWildcardWatch}, {"shards write their replicas", testShardsWriteTheirReplicas},
		{"replicas are deleted at once", testReplicasAreDeletedAtOnce}, {"malformed replicas", testMalformedReplicas},
		{"access", testAccess}, {"readers", testReaders}, {"garbage", testGarbage}, {"discovery", testDiscovery},
		{"annotations cannot be forged", testAnnotationsCannotBeForged}, {"status is part of the object", testStatusIsPartOfTheObject},
		{"names of roles", testNamesOfRoles}, {"roles in namespaces", testRolesInNamespaces},
		{"replicas stay as they are", testUnchangedReplicas}, {"own objects get metadata", testOwnObjectsGetMetadata},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, cache) })
	}
}

func testGarbage(t *testing.T, cache *cacheServer) {
	t.Helper()
	master := httpClient(t, cache.pki.master(t, cache.url))
	shards := cache.url + "/services/cache/shards/amber/clusters/root/apis/core.kcp.io/v1alpha1/shards"
	all := cache.url + "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards"
	for _, tt := range []struct {
		method, url, body string
		want              int
	}{
		{http.MethodPost, shards, "{", http.StatusBadRequest},
		{http.MethodPost, shards, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Other","metadata":{"name":"one"}}`, http.StatusUnprocessableEntity},
		{http.MethodPost, shards, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"../one"}}`, http.StatusUnprocessableEntity},
		{http.MethodDelete, all, "", http.StatusMethodNotAllowed}, // TestWildcardVerbs has the other verbs
		{http.MethodGet, all + "?limit=1&continue=garbage", "", http.StatusBadRequest},
		{http.MethodGet, all + "?resourceVersion=garbage", "", http.StatusBadRequest},
		{http.MethodGet, all + "?labelSelector=%21%21", "", http.StatusBadRequest},
	} {
		status, body := do(t, master, tt.method, tt.url, tt.body)
		require.Equal(t, tt.want, status, "%s %s: %s", tt.method, tt.url, body)
	}
}

func testIsolation(t *testing.T, cache *cacheServer) {
	t.Helper()
	f := cache.f
	for _, shard := range []string{"amber", "blue"} {
		for _, cluster := range []string{"root", "other"} {
			created := create(t, in(t, f.Shard(shard), cluster, shardsGVR), object(shardsGVR, "Shard", "same", map[string]any{
				"from": shard + "/" + cluster, "fromTheFuture": map[string]any{"n": int64(1)},
			}))
			require.Equal(t, shard, created.GetAnnotations()["kcp.io/shard"])
			require.Equal(t, cluster, created.GetAnnotations()["kcp.io/cluster"])
		}
	}
	for _, shard := range []string{"amber", "blue"} {
		for _, cluster := range []string{"root", "other"} {
			got := mustGet(t, in(t, f.Shard(shard), cluster, shardsGVR), "same")
			require.Equal(t, map[string]any{"from": shard + "/" + cluster, "fromTheFuture": map[string]any{"n": int64(1)}}, got.Object["spec"])
			requireList(t, f.Shard(shard), cluster, shard+"|"+cluster+"|same")
		}
		requireList(t, f.Shard(shard), "*", shard+"|other|same", shard+"|root|same")
	}
	requireList(t, f.Shard("*"), "root", "amber|root|same", "blue|root|same")
	requireList(t, f.Shard("*"), "*", "amber|other|same", "amber|root|same", "blue|other|same", "blue|root|same")
	requireList(t, f.Shard("green"), "*")
	requireList(t, f.Shard("ambe"), "*")

	page := mustList(t, in(t, f.Shard("amber"), "*", shardsGVR), metav1.ListOptions{Limit: 1})
	require.NotEmpty(t, page.GetContinue())
	for shard, cluster := range map[string]string{"blue": "*", "*": "*", "amber": "root"} {
		_, err := in(t, f.Shard(shard), cluster, shardsGVR).List(t.Context(), metav1.ListOptions{Continue: page.GetContinue()})
		require.True(t, apierrors.IsBadRequest(err), "a token of another scope in %s/%s: %v", shard, cluster, err)
	}

	_, err := in(t, f.Shard("green"), "root", shardsGVR).Get(t.Context(), "same", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.NoError(t, in(t, f.Shard("amber"), "root", shardsGVR).Delete(t.Context(), "same", metav1.DeleteOptions{}))
	requireList(t, f.Shard("*"), "*", "amber|other|same", "blue|other|same", "blue|root|same")
	require.NoError(t, in(t, f.Shard("blue"), "other", shardsGVR).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	requireList(t, f.Shard("*"), "*", "amber|other|same", "blue|root|same")
	deleteShards(t, f, "amber", "other")
	deleteShards(t, f, "blue", "root")
}

func deleteShards(t *testing.T, f *client.Factory, shard, cluster string) {
	t.Helper()
	require.NoError(t, in(t, f.Shard(shard), cluster, shardsGVR).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// requireList compares a list, also in pages, with the expected one.
func requireList(t *testing.T, f *client.Factory, cluster string, want ...string) {
	t.Helper()
	for _, limit := range []int64{0, 1} {
		var got []string
		opts := metav1.ListOptions{Limit: limit}
		for {
			page := mustList(t, in(t, f, cluster, shardsGVR), opts)
			got = append(got, names(page)...)
			if opts.Continue = page.GetContinue(); opts.Continue == "" {
				break
			}
		}
		require.ElementsMatch(t, want, got, "limit %d", limit)
	}
}

func testAnnotationsCannotBeForged(t *testing.T, cache *cacheServer) {
	t.Helper()
	shards := in(t, cache.f.Shard("amber"), "forged", shardsGVR)
	obj := object(shardsGVR, "Shard", "one", nil)
	obj.SetAnnotations(map[string]string{"kcp.io/shard": "blue", "kcp.io/cluster": "other", "mine": "kept"})
	want := map[string]string{"kcp.io/shard": "amber", "kcp.io/cluster": "forged", "mine": "kept"}

	created := create(t, shards, obj)
	require.Equal(t, want, created.GetAnnotations())
	obj.SetResourceVersion(created.GetResourceVersion())
	updated, err := shards.Update(t.Context(), obj, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, want, updated.GetAnnotations())
	patched := mustPatch(t, shards, "one", `{"metadata":{"annotations":{"kcp.io/shard":null,"kcp.io/cluster":"x"}}}`)
	require.Equal(t, want, patched.GetAnnotations())
	dryRun := object(shardsGVR, "Shard", "dry", nil)
	dry, err := shards.Create(t.Context(), dryRun, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	require.Equal(t, "amber", dry.GetAnnotations()["kcp.io/shard"])
	require.Equal(t, "forged", dry.GetAnnotations()["kcp.io/cluster"])
}

// testNamesOfRoles: roles and bindings have names that other custom resources cannot have,
// and so do their replicas.
func testNamesOfRoles(t *testing.T, cache *cacheServer) {
	t.Helper()
	roles := in(t, cache.f.Shard("amber"), "root", rbacv1.SchemeGroupVersion.WithResource("clusterroles"))
	const name = "system:kcp:Some_Role:bind"
	obj := object(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "ClusterRole", name, nil)
	obj.Object["rules"] = []any{map[string]any{"verbs": []any{"bind"}, "apiGroups": []any{"*"}, "resources": []any{"*"}}}
	created := create(t, roles, obj)
	require.Equal(t, obj.Object["rules"], created.Object["rules"])
	created.Object["rules"] = []any{}
	_, err := roles.Update(t.Context(), created, metav1.UpdateOptions{})
	require.NoError(t, err)
	mustPatch(t, roles, name, `{"metadata":{"labels":{"a":"b"}}}`)
	read := mustGet(t, roles, name)
	require.Equal(t, "b", read.GetLabels()["a"])
	require.Empty(t, read.Object["rules"])
	require.NoError(t, roles.Delete(t.Context(), name, metav1.DeleteOptions{}))

	for bad, labels := range map[string]map[string]string{"a%b": nil, "a/b": nil, "good": {"not a label": "x"}} {
		wrong := object(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "ClusterRole", bad, nil)
		wrong.SetLabels(labels)
		_, err = roles.Create(t.Context(), wrong, metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%s: %v", bad, err)
	}
	_, err = in(t, cache.f.Shard("amber"), "root", shardsGVR).Create(t.Context(), object(shardsGVR, "Shard", name, nil), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
}

// testRolesInNamespaces checks resources that no shard replicates, in namespaces that do not exist.
func testRolesInNamespaces(t *testing.T, cache *cacheServer) {
	t.Helper()
	for resource, kind := range map[string]string{"roles": "Role", "rolebindings": "RoleBinding"} {
		gvr := rbacv1.SchemeGroupVersion.WithResource(resource)
		all := mustList(t, in(t, cache.f.Shard("*"), "*", gvr), metav1.ListOptions{})
		require.Empty(t, all.Items)
		replica := object(gvr, kind, "system:some", nil)
		replica.SetNamespace("some")
		replica.SetAnnotations(map[string]string{"kcp.io/shard": "amber"})
		replica.SetUID("of-amber")
		amber, err := cache.f.Shard("amber").Cluster(logicalcluster.NewPath("root")).Dynamic()
		require.NoError(t, err)
		create(t, amber.Resource(gvr).Namespace("some"), replica)
		all = mustList(t, in(t, cache.f.Shard("*"), "*", gvr), metav1.ListOptions{})
		require.Len(t, all.Items, 1)
		require.Equal(t, types.UID("of-amber"), all.Items[0].GetUID())
		require.Equal(t, "some", all.Items[0].GetNamespace())
	}
}

func testStatusIsPartOfTheObject(t *testing.T, cache *cacheServer) {
	t.Helper()
	shards := in(t, cache.f.Shard("amber"), "status", shardsGVR)
	obj := object(shardsGVR, "Shard", "one", nil)
	obj.Object["status"] = map[string]any{"ready": true}
	require.Equal(t, map[string]any{"ready": true}, create(t, shards, obj).Object["status"])
	_, err := shards.Get(t.Context(), "one", metav1.GetOptions{}, "status")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func testWildcardWatch(t *testing.T, cache *cacheServer) {
	t.Helper()
	f := cache.f
	create(t, in(t, f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "first", nil))

	initial, err := in(t, f.Shard("*"), "*", shardsGVR).Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	require.NoError(t, err)
	defer initial.Stop()
	require.Equal(t, "ADDED amber|root|first", next(t, initial))
	require.Equal(t, "BOOKMARK", next(t, initial))

	one, err := in(t, f.Shard("blue"), "*", shardsGVR).Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer one.Stop()

	create(t, in(t, f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "second", nil))
	create(t, in(t, f.Shard("blue"), "other", shardsGVR), object(shardsGVR, "Shard", "second", nil))
	require.NoError(t, in(t, f.Shard("amber"), "root", shardsGVR).Delete(t.Context(), "second", metav1.DeleteOptions{}))
	require.Equal(t, "ADDED amber|root|second", next(t, initial))
	require.Equal(t, "ADDED blue|other|second", next(t, initial))
	require.Equal(t, "DELETED amber|root|second", next(t, initial))
	require.Equal(t, "ADDED blue|other|second", next(t, one))
	deleteShards(t, f, "amber", "root")
	deleteShards(t, f, "blue", "other")
}

// next returns the next event as text.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		require.True(t, ok, "the watch ended unexpectedly")
		if event.Type == watch.Bookmark {
			return string(event.Type)
		}
		obj, ok := event.Object.(*unstructured.Unstructured)
		require.True(t, ok, "%#v", event.Object)
		return string(event.Type) + " " + names(&unstructured.UnstructuredList{Items: []unstructured.Unstructured{*obj}})[0]
	case <-time.After(deadline):
		require.Fail(t, "no event")
		return ""
	}
}

func testDiscovery(t *testing.T, cache *cacheServer) {
	t.Helper()
	root := logicalcluster.NewPath("root")
	for _, scope := range []client.Scope{cache.f.Shard("amber").Cluster(root), cache.f.Shard("*").Wildcard()} {
		discovery, err := documents.Of(scope)
		require.NoError(t, err)
		_, lists, err := discovery.ServerGroupsAndResources()
		require.NoError(t, err)
		served := map[string]metav1.APIResource{}
		for _, list := range lists {
			for _, resource := range list.APIResources {
				served[list.GroupVersion+"/"+resource.Name] = resource
			}
		}
		require.Equal(t, "Shard", served["core.kcp.io/v1alpha1/shards"].Kind)
		require.NotContains(t, served, "core.kcp.io/v1alpha1/shards/status")
		for _, resource := range replication.Defaults() {
			require.Contains(t, served, resource.GroupVersion().String()+"/"+resource.Resource)
		}
		_, err = discovery.ServerVersion()
		require.NoError(t, err)
		paths, err := discovery.OpenAPIV3().Paths()
		require.NoError(t, err)
		require.Contains(t, paths, "apis/core.kcp.io/v1alpha1")
	}
}

// TestRestart: watches end when the server stops, and clients resume them when it runs again with its data. A replica that
// can no longer be read is skipped and counted.
func TestRestart(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	f := cache.f
	create(t, in(t, f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "same", nil))
	create(t, in(t, f.Shard("blue"), "other", shardsGVR), object(shardsGVR, "Shard", "same", nil))
	before := mustList(t, in(t, f.Shard("*"), "*", shardsGVR), metav1.ListOptions{})
	open, err := in(t, f.Shard("*"), "*", shardsGVR).Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
	require.NoError(t, err)
	defer open.Stop()

	cache.stop()
	select {
	case _, more := <-open.ResultChan():
		require.False(t, more)
	case <-time.After(deadline):
		require.Fail(t, "the watch did not end with the server")
	}
	cache.start(t)
	requireList(t, f.Shard("*"), "*", "amber|root|same", "blue|other|same")
	w, err := in(t, f.Shard("*"), "*", shardsGVR).Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
	require.NoError(t, err)
	defer w.Stop()
	create(t, in(t, f.Shard("blue"), "root", shardsGVR), object(shardsGVR, "Shard", "later", nil))
	require.Equal(t, "ADDED blue|root|later", next(t, w))

	cache.stop()
	data, err := cache.options(t).Etcd.Open(t.Context())
	require.NoError(t, err)
	stored, err := data.Client().Client.Get(t.Context(), data.Prefix(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range stored.Kvs {
		if strings.HasSuffix(string(kv.Key), "/later") {
			_, err = data.Client().Client.Put(t.Context(), string(kv.Key), "garbage")
			require.NoError(t, err)
		}
	}
	data.Stop()
	cache.start(t)
	requireList(t, f.Shard("*"), "*", "amber|root|same", "blue|other|same")
	require.Positive(t, measured(t, cache.own(t), "shardplane_storage_unreadable_object_reads_total", map[string]string{"reason": "undecodable"}))
}
