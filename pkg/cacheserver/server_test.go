package cacheserver_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
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
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(answer)
}

func httpClient(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// claiming adds claims of logical clusters to requests, as a front-proxy does.
type claiming struct {
	next   http.RoundTripper
	claims []string
}

func (c claiming) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Remote-User", "system:serviceaccount:default:robot")
	r.Header.Set("X-Remote-Group", "system:masters")
	for _, claim := range c.claims {
		r.Header.Add("X-Remote-Extra-Authentication.kcp.io%2Fcluster-Name", claim)
	}
	return c.next.RoundTrip(r)
}

func TestAccess(t *testing.T) {
	cache := newCacheServer(t)
	other := newPKI(t)
	foreign := other.master(t, cache.url)
	foreign.CAData = cache.pki.caPEM
	master := httpClient(t, cache.pki.master(t, cache.url))
	strangers := map[string]*http.Client{
		"anonymous":            httpClient(t, cache.pki.anonymous(cache.url)),
		"a user":               httpClient(t, cache.pki.user(t, cache.url, "somebody")),
		"an administrator":     httpClient(t, cache.pki.user(t, cache.url, "admin", "system:kcp:admin")),
		"a master by another":  httpClient(t, foreign),
		"the shard's own name": httpClient(t, cache.pki.user(t, cache.url, "amber", "system:authenticated")),
	}
	// Whatever a service account claims: here is none at home.
	for name, claims := range map[string][]string{"no": nil, "one": {"root"}, "several": {"root", "other"}, "a foreign": {"other"}} {
		account := cache.pki.user(t, cache.url, "system:serviceaccount:default:robot", "system:masters")
		account.Wrap(func(next http.RoundTripper) http.RoundTripper { return claiming{next, claims} })
		strangers["an account that claims "+name+" logical cluster"] = httpClient(t, account)
	}
	scoped := cache.pki.master(t, cache.url)
	scoped.Impersonate = rest.ImpersonationConfig{
		UserName: "admin", Groups: []string{"system:kcp:admin"}, Extra: map[string][]string{"authentication.kcp.io/scopes": {"cluster:root"}},
	}
	strangers["an administrator of one logical cluster"] = httpClient(t, scoped)
	const base = "/services/cache/shards/amber/clusters/root"
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/livez/ping"} {
		for name, stranger := range strangers {
			status, body := get(t, stranger, cache.url+path)
			require.Equal(t, http.StatusOK, status, "%s as %s: %s", path, name, body)
		}
	}
	for _, path := range []string{
		"/metrics", "/version", base + "/apis", base + "/version", base + "/apis/core.kcp.io/v1alpha1/shards",
		"/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards",
	} {
		for name, stranger := range strangers {
			status, body := get(t, stranger, cache.url+path)
			require.Equal(t, http.StatusForbidden, status, "%s as %s: %s", path, name, body)
		}
		status, body := get(t, master, cache.url+path)
		require.Equal(t, http.StatusOK, status, "%s: %s", path, body)
	}
	const profile = "/debug/pprof/goroutine?debug=1"
	for name, stranger := range strangers {
		want := http.StatusForbidden
		if name == "an administrator" {
			want = http.StatusOK
		}
		status, body := get(t, stranger, cache.url+profile)
		require.Equal(t, want, status, "as %s: %s", name, body)
		status, body = do(t, stranger, http.MethodPost, cache.url+"/debug/pprof/symbol", "")
		require.Equal(t, http.StatusForbidden, status, "as %s: %s", name, body)
	}
	status, body := get(t, master, cache.url+profile)
	require.Equal(t, http.StatusOK, status, body)
	for path, want := range map[string]int{
		"/":                            http.StatusBadRequest,
		"/apis":                        http.StatusBadRequest,
		"/clusters/root/apis":          http.StatusBadRequest,
		"/services/cache/shards//apis": http.StatusBadRequest,
		"/services/cache/shards/NO/clusters/root/apis":                   http.StatusBadRequest,
		"/services/cache/shards/amber/clusters/a:b/apis":                 http.StatusBadRequest,
		"/services/cache/shards/amber/metrics":                           http.StatusNotImplemented,
		base + "/metrics":                                                http.StatusNotImplemented,
		base + "/clusters/other/apis/core.kcp.io/v1alpha1/shards":        http.StatusNotFound,
		base + "/apis/core.kcp.io/v1alpha1/nothings":                     http.StatusNotFound,
		base + "/apis/core.kcp.io/v1/shards":                             http.StatusNotFound,
		base + "/api/v1/configmaps":                                      http.StatusNotFound,
		base + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": http.StatusNotFound,
	} {
		status, body := get(t, master, cache.url+path)
		require.Equal(t, want, status, "%s: %s", path, body)
	}
}

// TestShardsWriteTheirReplicas: shards read everything, and write below their own names.
func TestShardsWriteTheirReplicas(t *testing.T) {
	cache := newCacheServer(t)
	amber := httpClient(t, cache.pki.user(t, cache.url, "system:shard:amber", "system:kcp:shards"))
	nobody := httpClient(t, cache.pki.user(t, cache.url, "amber", "system:kcp:shards"))
	at := func(shard string) string {
		return cache.url + "/services/cache/shards/" + shard + "/clusters/root/apis/core.kcp.io/v1alpha1/shards"
	}
	const one = `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"one"}}`
	for _, tt := range []struct {
		client            *http.Client
		method, url, body string
		want              int
	}{
		{amber, http.MethodPost, at("amber"), one, http.StatusCreated},
		{amber, http.MethodPost, at("blue"), one, http.StatusForbidden},
		{amber, http.MethodDelete, at("blue") + "/one", "", http.StatusForbidden},
		{nobody, http.MethodPost, at("amber"), one, http.StatusForbidden},
		{nobody, http.MethodGet, at("amber") + "/one", "", http.StatusOK},
		{amber, http.MethodGet, cache.url + "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards", "", http.StatusOK},
		{amber, http.MethodGet, cache.url + "/metrics", "", http.StatusForbidden},
		{amber, http.MethodDelete, at("amber") + "/one", "", http.StatusOK},
	} {
		status, body := do(t, tt.client, tt.method, tt.url, tt.body)
		require.Equal(t, tt.want, status, "%s %s: %s", tt.method, tt.url, body)
	}
}

func TestGarbage(t *testing.T) {
	cache := newCacheServer(t, func(o *cacheserver.Options) { o.Serving.Profiling = false })
	master := httpClient(t, cache.pki.master(t, cache.url))
	shards := cache.url + "/services/cache/shards/amber/clusters/root/apis/core.kcp.io/v1alpha1/shards"
	all := cache.url + "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards"
	const valid = `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"one"}}`
	for _, tt := range []struct {
		method, url, body string
		want              int
	}{
		{http.MethodPost, shards, "{", http.StatusBadRequest},
		{http.MethodPost, shards, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Other","metadata":{"name":"one"}}`, http.StatusUnprocessableEntity},
		{http.MethodPost, shards, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"../one"}}`, http.StatusUnprocessableEntity},
		{http.MethodPost, all, valid, http.StatusMethodNotAllowed},
		{http.MethodPut, all + "/one", valid, http.StatusMethodNotAllowed},
		{http.MethodGet, all + "/one", "", http.StatusMethodNotAllowed},
		{http.MethodDelete, all + "/one", "", http.StatusMethodNotAllowed},
		{http.MethodDelete, all, "", http.StatusMethodNotAllowed},
		{http.MethodGet, all + "?limit=1&continue=garbage", "", http.StatusBadRequest},
		{http.MethodGet, all + "?resourceVersion=garbage", "", http.StatusBadRequest},
		{http.MethodGet, all + "?labelSelector=%21%21", "", http.StatusBadRequest},
		{http.MethodGet, cache.url + "/debug/pprof/heap", "", http.StatusNotFound}, // there are none
	} {
		status, body := do(t, master, tt.method, tt.url, tt.body)
		require.Equal(t, tt.want, status, "%s %s: %s", tt.method, tt.url, body)
	}
}

func TestIsolation(t *testing.T) {
	cache := newCacheServer(t)
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
			got, err := in(t, f.Shard(shard), cluster, shardsGVR).Get(t.Context(), "same", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, map[string]any{"from": shard + "/" + cluster, "fromTheFuture": map[string]any{"n": int64(1)}}, got.Object["spec"])
			requireList(t, f.Shard(shard), cluster, shard+"|"+cluster+"|same")
		}
		requireList(t, f.Shard(shard), "*", shard+"|other|same", shard+"|root|same")
	}
	requireList(t, f.Shard("*"), "root", "amber|root|same", "blue|root|same")
	requireList(t, f.Shard("*"), "*", "amber|other|same", "amber|root|same", "blue|other|same", "blue|root|same")
	requireList(t, f.Shard("green"), "*")
	requireList(t, f.Shard("ambe"), "*")

	page, err := in(t, f.Shard("amber"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(t, err)
	require.NotEmpty(t, page.GetContinue())
	for shard, cluster := range map[string]string{"blue": "*", "*": "*", "amber": "root"} {
		_, err := in(t, f.Shard(shard), cluster, shardsGVR).List(t.Context(), metav1.ListOptions{Continue: page.GetContinue()})
		require.True(t, apierrors.IsBadRequest(err), "a token of another scope in %s/%s: %v", shard, cluster, err)
	}

	_, err = in(t, f.Shard("green"), "root", shardsGVR).Get(t.Context(), "same", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.NoError(t, in(t, f.Shard("amber"), "root", shardsGVR).Delete(t.Context(), "same", metav1.DeleteOptions{}))
	requireList(t, f.Shard("*"), "*", "amber|other|same", "blue|other|same", "blue|root|same")
	require.NoError(t, in(t, f.Shard("blue"), "other", shardsGVR).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	requireList(t, f.Shard("*"), "*", "amber|other|same", "blue|root|same")
}

// requireList holds a list, and the same in pages, against what is expected.
func requireList(t *testing.T, f *client.Factory, cluster string, want ...string) {
	t.Helper()
	for _, limit := range []int64{0, 1} {
		var got []string
		opts := metav1.ListOptions{Limit: limit}
		for {
			page, err := in(t, f, cluster, shardsGVR).List(t.Context(), opts)
			require.NoError(t, err)
			got = append(got, names(page)...)
			if opts.Continue = page.GetContinue(); opts.Continue == "" {
				break
			}
		}
		require.ElementsMatch(t, want, got, "limit %d", limit)
	}
}

func TestAnnotationsCannotBeForged(t *testing.T) {
	cache := newCacheServer(t)
	shards := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	obj := object(shardsGVR, "Shard", "one", nil)
	obj.SetAnnotations(map[string]string{"kcp.io/shard": "blue", "kcp.io/cluster": "other", "mine": "kept"})
	want := map[string]string{"kcp.io/shard": "amber", "kcp.io/cluster": "root", "mine": "kept"}

	created := create(t, shards, obj)
	require.Equal(t, want, created.GetAnnotations())
	obj.SetResourceVersion(created.GetResourceVersion())
	updated, err := shards.Update(t.Context(), obj, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, want, updated.GetAnnotations())
	patched, err := shards.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"annotations":{"kcp.io/shard":null,"kcp.io/cluster":"x"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, want, patched.GetAnnotations())
	dryRun := object(shardsGVR, "Shard", "dry", nil)
	dry, err := shards.Create(t.Context(), dryRun, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	require.Equal(t, "amber", dry.GetAnnotations()["kcp.io/shard"])
	require.Equal(t, "root", dry.GetAnnotations()["kcp.io/cluster"])
}

// TestNamesOfRoles: roles and bindings have names that other custom resources cannot have,
// and so do their replicas.
func TestNamesOfRoles(t *testing.T) {
	cache := newCacheServer(t)
	roles := in(t, cache.f.Shard("amber"), "root", rbacv1.SchemeGroupVersion.WithResource("clusterroles"))
	const name = "system:kcp:Some_Role:bind"
	obj := object(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "ClusterRole", name, nil)
	obj.Object["rules"] = []any{map[string]any{"verbs": []any{"bind"}, "apiGroups": []any{"*"}, "resources": []any{"*"}}}
	created := create(t, roles, obj)
	require.Equal(t, obj.Object["rules"], created.Object["rules"])
	created.Object["rules"] = []any{}
	_, err := roles.Update(t.Context(), created, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = roles.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	read, err := roles.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
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

// TestRolesInNamespaces: what no shard replicates can be read and written as all else, in namespaces that nobody has
// made.
func TestRolesInNamespaces(t *testing.T) {
	cache := newCacheServer(t)
	for resource, kind := range map[string]string{"roles": "Role", "rolebindings": "RoleBinding"} {
		gvr := rbacv1.SchemeGroupVersion.WithResource(resource)
		all, err := in(t, cache.f.Shard("*"), "*", gvr).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, all.Items)
		replica := object(gvr, kind, "system:some", nil)
		replica.SetNamespace("some")
		replica.SetAnnotations(map[string]string{"kcp.io/shard": "amber"})
		replica.SetUID("of-amber")
		amber, err := cache.f.Shard("amber").Cluster(logicalcluster.NewPath("root")).Dynamic()
		require.NoError(t, err)
		create(t, amber.Resource(gvr).Namespace("some"), replica)
		all, err = in(t, cache.f.Shard("*"), "*", gvr).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, all.Items, 1)
		require.Equal(t, types.UID("of-amber"), all.Items[0].GetUID())
		require.Equal(t, "some", all.Items[0].GetNamespace())
	}
}

func TestStatusIsPartOfTheObject(t *testing.T) {
	cache := newCacheServer(t)
	shards := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	obj := object(shardsGVR, "Shard", "one", nil)
	obj.Object["status"] = map[string]any{"ready": true}
	require.Equal(t, map[string]any{"ready": true}, create(t, shards, obj).Object["status"])
	_, err := shards.Get(t.Context(), "one", metav1.GetOptions{}, "status")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestWildcardWatch(t *testing.T) {
	cache := newCacheServer(t)
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
}

// next returns the next event as text.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	ctx, cancel := contextWithDeadline(t)
	defer cancel()
	select {
	case event, ok := <-w.ResultChan():
		require.True(t, ok, "the watch has ended")
		if event.Type == watch.Bookmark {
			return string(event.Type)
		}
		obj, ok := event.Object.(*unstructured.Unstructured)
		require.True(t, ok, "%#v", event.Object)
		return string(event.Type) + " " + names(&unstructured.UnstructuredList{Items: []unstructured.Unstructured{*obj}})[0]
	case <-ctx.Done():
		require.Fail(t, "no event")
		return ""
	}
}

func TestShardedList(t *testing.T) {
	cache := newCacheServer(t)
	f := cache.f
	for _, shard := range []string{"amber", "blue"} {
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			create(t, in(t, f.Shard(shard), "root", shardsGVR), object(shardsGVR, "Shard", name, nil))
		}
	}
	var got []string
	for _, selector := range []string{
		"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
		"shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
	} {
		list, err := in(t, f.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{ShardSelector: selector})
		require.NoError(t, err)
		got = append(got, names(list)...)
	}
	whole, err := in(t, f.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, whole.Items, 10)
	require.ElementsMatch(t, names(whole), got)
}

func TestDiscovery(t *testing.T) {
	cache := newCacheServer(t)
	for _, scope := range []client.Scope{cache.f.Shard("amber").Cluster(rootPath), cache.f.Shard("*").Wildcard()} {
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
		require.Contains(t, served, "core.kcp.io/v1alpha1/shards")
		require.Contains(t, served, "tenancy.kcp.io/v1alpha1/workspacetypes")
		require.Contains(t, served, "core.kcp.io/v1alpha1/logicalclusters")
		require.Equal(t, "Shard", served["core.kcp.io/v1alpha1/shards"].Kind)
		require.NotContains(t, served, "core.kcp.io/v1alpha1/shards/status")
		_, err = discovery.ServerVersion()
		require.NoError(t, err)
		paths, err := discovery.OpenAPIV3().Paths()
		require.NoError(t, err)
		require.Contains(t, paths, "apis/core.kcp.io/v1alpha1")
	}
}

func TestRestartKeepsData(t *testing.T) {
	cache := newCacheServer(t)
	f := cache.f
	var want []string
	for _, shard := range []string{"amber", "blue"} {
		for _, cluster := range []string{"root", "other"} {
			create(t, in(t, f.Shard(shard), cluster, shardsGVR), object(shardsGVR, "Shard", "same", nil))
			want = append(want, shard+"|"+cluster+"|same")
		}
	}
	before, err := in(t, f.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	cache.stop()
	f.CloseIdleConnections()
	cache.start(t)
	requireList(t, f.Shard("*"), "*", want...)
	w, err := in(t, f.Shard("*"), "*", shardsGVR).Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
	require.NoError(t, err)
	defer w.Stop()
	create(t, in(t, f.Shard("blue"), "root", shardsGVR), object(shardsGVR, "Shard", "later", nil))
	require.Equal(t, "ADDED blue|root|later", next(t, w))
}

func TestStopEndsWatches(t *testing.T) {
	cache := newCacheServer(t)
	w, err := in(t, cache.f.Shard("*"), "*", shardsGVR).Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	cache.stop()
	ctx, cancel := contextWithDeadline(t)
	defer cancel()
	select {
	case _, open := <-w.ResultChan():
		require.False(t, open)
	case <-ctx.Done():
		require.Fail(t, "the watch outlives the server")
	}
}
