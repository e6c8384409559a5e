package apis

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// namesOf returns the names of objects, each with its logical cluster.
func namesOf(list *unstructured.Unstructured, of map[string]string) []string {
	var names []string
	items, _, _ := unstructured.NestedSlice(list.Object, "items")
	for _, item := range items {
		u := &unstructured.Unstructured{Object: item.(map[string]any)}
		names = append(names, of[u.GetAnnotations()["kcp.io/cluster"]]+"/"+u.GetName())
	}
	slices.Sort(names)
	return names
}

// TestView: through the view of its export a provider sees what consumers let it see,
// and nothing else.
func TestView(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.RunParallel("content", func(t *testing.T, e *kit.Env) { testView(t, e) })
	e.RunParallel("claims", func(t *testing.T, e *kit.Env) { testClaims(t, e) })
	e.RunParallel("claims between list and watch", func(t *testing.T, e *kit.Env) { testClaimBetweenListAndWatch(t, e) })
	e.RunParallel("claims of nobody", func(t *testing.T, e *kit.Env) { testClaimantGoes(t, e) })
	for shard, where := range []string{"", " of a provider elsewhere"} {
		e.RunParallel("writers"+where, func(t *testing.T, e *kit.Env) { testClaimWriters(t, e, shard) })
		e.RunParallel("creations"+where, func(t *testing.T, e *kit.Env) { testViewCreations(t, e, shard) })
		e.RunParallel("claims of bindings"+where, func(t *testing.T, e *kit.Env) { testClaimOfBindings(t, e, shard) })
	}
	e.RunParallel("finalizers", func(t *testing.T, e *kit.Env) { testClaimFinalizers(t, e) })
	e.RunParallel("rights", func(t *testing.T, e *kit.Env) { testViewRights(t, e) })
	e.RunParallel("URLs", func(t *testing.T, e *kit.Env) { testViewURLs(t, e) })
	e.RunParallel("front-proxy", func(t *testing.T, e *kit.Env) { testViewThroughProxy(t, e) })
	e.RunParallel("claims of APIs", func(t *testing.T, e *kit.Env) { testClaimsOfAPIs(t, e) })
	e.RunParallel("claims of built-in kinds", func(t *testing.T, e *kit.Env) { testClaimedKinds(t, e) })
	e.RunParallel("reviews", func(t *testing.T, e *kit.Env) { testViewReviews(t, e) })
	e.RunParallel("events", func(t *testing.T, e *kit.Env) { testClaimedEvents(t, e) })
}

// consumersOf makes a provider with an export of widgets, and consumers that bind it.
func consumersOf(t *testing.T, e *kit.Env, name string, n int) (provider kit.WorkspaceClient, identity string, consumers []kit.WorkspaceClient) {
	t.Helper()
	return consumersOn(t, e, 0, name, n)
}

// consumersOn is consumersOf with the provider on another shard.
func consumersOn(t *testing.T, e *kit.Env, shard int, name string, n int) (provider kit.WorkspaceClient, identity string, consumers []kit.WorkspaceClient) {
	t.Helper()
	if shard > 0 {
		name += "-far"
	}
	provider = newProviderOn(e, name+"-provider", shard).ForTest(t)
	identity = provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	for i := range n {
		k := kit.NewWorkspaceClient(e, fmt.Sprintf("%s-%d", name, i)).ForTest(t)
		k.BindPath(http.StatusCreated, "e", provider.ClusterName, "e")
		k.UntilBinding("e", "Ready", "True <nil>")
		provider.ThroughExport("e", k.ClusterName).Eventually("the view has heard of it", func() bool {
			code, _ := provider.ThroughExport("e", k.ClusterName).TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
			return code == http.StatusOK
		})
		consumers = append(consumers, k)
	}
	return provider, identity, consumers
}

func testView(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "view", 2)
	one, two := consumers[0], consumers[1]
	names := map[string]string{one.ClusterName: "one", two.ClusterName: "two"}
	one.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	two.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 2))
	all, inOne := provider.ThroughExport("e", "*"), provider.ThroughExport("e", one.ClusterName)

	// Own objects, of all and of one.
	require.Equal(t, []string{"one/a", "two/b"}, namesOf(all.Get("/apis/example.org/v1/widgets"), names))
	require.Equal(t, []string{"one/a"}, namesOf(inOne.Get("/apis/example.org/v1/widgets"), names))
	testViewInParts(t, all, inOne, names)
	inOne.Create(kit.WidgetsPath, "%s", kit.Widget("c", "size", 3))
	inOne.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/c/status", `{"status":{"ok":true}}`)
	inOne.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/c", `{"spec":{"size":4}}`)
	inOne.Do(http.StatusCreated, http.MethodPatch, kit.WidgetsPath+"/applied?fieldManager=provider", kit.Widget("applied", "size", 7))
	require.EqualValues(t, 4, kit.Field(one.Get(kit.WidgetsPath+"/c"), "spec", "size"))
	inOne.Do(http.StatusOK, http.MethodDelete, kit.WidgetsPath+"/c", "")
	require.Equal(t, []string{"one/a", "one/applied", "two/b"}, namesOf(all.Get("/apis/example.org/v1/widgets?limit=500"), names))
	inOne.Do(http.StatusOK, http.MethodDelete, kit.WidgetsPath, "")
	require.Equal(t, []string{"two/b"}, namesOf(all.Get("/apis/example.org/v1/widgets"), names))

	// Bindings, those to the export only, in both versions; they are not the provider's to write.
	provider.CreateExport("f", provider.CreateSchema("v2", "gadgets", "size"))
	one.Bind("f", provider, "f")
	one.UntilBinding("f", "Ready", "True <nil>")
	require.Equal(t, []string{"one/e", "two/e"}, namesOf(all.Get(kit.APIsV1Alpha2+"apibindings"), names))
	require.Equal(t, []string{"one/e", "two/e"}, namesOf(all.Get(kit.APIsV1Alpha1+"apibindings"), names))
	require.Equal(t, []string{"one/e"}, namesOf(inOne.Get(kit.APIsV1Alpha2+"apibindings"), names))
	code, says := inOne.TryDo(http.MethodDelete, kit.APIsV1Alpha2+"apibindings/e", "")
	require.Equal(t, http.StatusForbidden, code, says)
	code, _ = inOne.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/f", "")
	require.Equal(t, http.StatusNotFound, code)

	// Documents tell of that, and of nothing else.
	for _, view := range []kit.WorkspaceClient{all, inOne} {
		groups := view.Get("/apis")
		var told []string
		for _, g := range kit.Field(groups, "groups").([]any) {
			told = append(told, g.(map[string]any)["name"].(string))
		}
		slices.Sort(told)
		require.Equal(t, []string{"apis.kcp.io", "example.org"}, told)
		require.Contains(t, fmt.Sprint(view.Get("/apis/example.org/v1").Object), "widgets/status")
		require.Contains(t, fmt.Sprint(view.Get("/apis/apis.kcp.io/v1alpha2").Object), "apibindings")
		require.NotContains(t, fmt.Sprint(view.Get("/apis/apis.kcp.io/v1alpha2").Object), "apiexports")
		require.Empty(t, kit.Field(view.Get("/api"), "versions"))
		paths := kit.Field(view.Get("/openapi/v3"), "paths").(map[string]any)
		require.Equal(t, []string{"api", "apis", "apis/apis.kcp.io", "apis/apis.kcp.io/v1alpha1", "apis/apis.kcp.io/v1alpha2", "apis/example.org", "apis/example.org/v1", "version"}, slices.Sorted(maps.Keys(paths)))
		require.Contains(t, fmt.Sprint(view.Get("/openapi/v3/apis/example.org/v1").Object), "size")
		v2 := kit.Field(view.Get("/openapi/v2"), "paths").(map[string]any)
		require.Contains(t, v2, "/apis/example.org/v1/widgets")
		require.NotContains(t, v2, "/api/v1/configmaps")
		code, says := view.TryDo(http.MethodGet, "/apis/apps", "")
		require.Equal(t, http.StatusNotFound, code, says)
		for name := range paths {
			require.Contains(t, fmt.Sprint(view.Get("/openapi/v3/"+name).Object), "/"+name+"/")
		}
		require.NotEmpty(t, kit.Field(view.Get("/version"), "gitVersion"))
	}

	// What nobody offers or claims is not there.
	code, says = all.TryDo(http.MethodGet, "/api/v1/configmaps", "")
	require.Equal(t, http.StatusNotFound, code, says)
	code, says = inOne.TryDo(http.MethodGet, kit.ConfigMapsPath, "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "no APIBinding in the logical cluster")
	code, says = all.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("x", "size", 1))
	require.Equal(t, http.StatusMethodNotAllowed, code, says)
	code, says = all.TryDo(http.MethodGet, kit.WidgetsPath, "")
	require.Equal(t, http.StatusBadRequest, code, says)

	// A consumer that goes is seen no more.
	two.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/e", "")
	inTwo := provider.ThroughExport("e", two.ClusterName)
	two.Eventually("the binding is gone from the view", func() bool {
		code, _ := inTwo.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
		return code == http.StatusForbidden && len(namesOf(all.Get(kit.APIsV1Alpha2+"apibindings"), names)) == 1
	})
}

// follow watches a resource through a view.
func watchThrough(k kit.WorkspaceClient, gvr schema.GroupVersionResource, namespace string) watch.Interface {
	k.T.Helper()
	w, err := dynamicThrough(k).Resource(gvr).Namespace(namespace).Watch(k.T.Context(), metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true})
	require.NoError(k.T, err)
	k.T.Cleanup(w.Stop)
	return w
}

// dynamicThrough returns a client of a virtual workspace.
func dynamicThrough(k kit.WorkspaceClient) dynamic.Interface {
	k.T.Helper()
	config := rest.CopyConfig(k.Config)
	config.Host += k.PathPrefix + "/clusters/" + k.ClusterName
	clients, err := dynamic.NewForConfig(config)
	require.NoError(k.T, err)
	return clients
}

// next waits for an event of an object, past others and bookmarks.
func next(t *testing.T, w watch.Interface, kind watch.EventType, name string) *unstructured.Unstructured {
	t.Helper()
	for {
		select {
		case event, open := <-w.ResultChan():
			require.True(t, open, "the watch has ended")
			u, _ := event.Object.(*unstructured.Unstructured)
			if event.Type == kind && u.GetName() == name {
				return u
			}
			require.NotEqual(t, watch.Error, event.Type, "%v", event.Object)
		case <-time.After(kit.Timeout):
			require.Fail(t, "no event", "%s %s", kind, name)
		}
	}
}

// testClaims: what is claimed is seen where the claim is accepted, and as long as it is,
// on open watches, too, and without a write to any object.
func testClaims(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "claims", 2)
	one, two := consumers[0], consumers[1]
	names := map[string]string{one.ClusterName: "one", two.ClusterName: "two"}
	all, inOne := provider.ThroughExport("e", "*"), provider.ThroughExport("e", one.ClusterName)
	for _, k := range consumers {
		k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"a"}}`)
		k.Eventually("default and kube-system have their CA", func() bool {
			items, _ := kit.Field(k.Get("/api/v1/configmaps"), "items").([]any)
			return len(items) == 3
		})
	}
	version := one.Get(kit.ConfigMapsPath + "/a").GetResourceVersion()

	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch","create"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	all.Eventually("nobody has accepted it", func() bool {
		code, _ := all.TryDo(http.MethodGet, "/api/v1/configmaps", "")
		return code == http.StatusOK
	})
	require.Empty(t, namesOf(all.Get("/api/v1/configmaps"), names))
	w := watchThrough(all, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "")
	one.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	added := next(t, w, watch.Added, "a")
	require.Equal(t, version, added.GetResourceVersion(), "nothing is written")
	require.Equal(t, []string{"one/a", "one/kube-root-ca.crt", "one/kube-root-ca.crt"}, namesOf(all.Get("/api/v1/configmaps"), names))
	require.Equal(t, []string{"one/a", "one/kube-root-ca.crt", "one/kube-root-ca.crt"}, namesOf(inOne.Get("/api/v1/configmaps"), names))

	// The label tells, also in the consumer's logical cluster, and nobody sets it.
	claimed := func(u *unstructured.Unstructured) []string {
		var found []string
		for key, value := range u.GetLabels() {
			if strings.HasPrefix(key, "claimed.internal.apis.kcp.io/") {
				found = append(found, key+"="+value)
			}
		}
		return found
	}
	require.Len(t, claimed(added), 1)
	require.Equal(t, claimed(added), claimed(one.Get(kit.ConfigMapsPath+"/a")))
	require.Empty(t, claimed(two.Get(kit.ConfigMapsPath+"/a")))
	require.Len(t, kit.Field(one.Get("/api/v1/configmaps?labelSelector="+strings.Replace(claimed(added)[0], "=", "%3D", 1)), "items"), 3)
	testUnchangedClaimed(one, inOne, kit.ConfigMapsPath+"/a", claimed(added)[0])
	next(t, w, watch.Modified, "a") // of the first apply
	written := one.Get(kit.ConfigMapsPath + "/a")
	written.Object["data"] = map[string]any{"x": "y"}
	text, err := written.MarshalJSON()
	require.NoError(t, err)
	tenant := one.As("user-1-token")
	one.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	tenant.Eventually("the tenant may write what it has read", func() bool {
		code, _ := tenant.TryDo(http.MethodPut, kit.ConfigMapsPath+"/a", string(text))
		return code == http.StatusOK
	})
	next(t, w, watch.Modified, "a")

	// The verbs of the claim, and no others.
	inOne.Create(kit.ConfigMapsPath, `{"metadata":{"name":"made"}}`)
	next(t, w, watch.Added, "made")
	code, says := inOne.TryDo(http.MethodDelete, kit.ConfigMapsPath+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, fmt.Sprint(inOne.Get("/api/v1").Object), "configmaps")
	require.NotContains(t, fmt.Sprint(inOne.Get("/api/v1").Object), "secrets")

	// Rejected.
	one.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Rejected"}]`)
	next(t, w, watch.Deleted, "a")
	require.Empty(t, namesOf(all.Get("/api/v1/configmaps"), names))
	require.Empty(t, claimed(one.Get(kit.ConfigMapsPath+"/a")))
	code, says = inOne.TryDo(http.MethodGet, kit.ConfigMapsPath+"/a", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// Not claimed any more.
	two.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	next(t, w, watch.Added, "a")
	provider.ClaimInExport(`[]`)
	next(t, w, watch.Deleted, "a")
	all.Eventually("there is nothing like it", func() bool {
		code, _ := all.TryDo(http.MethodGet, "/api/v1/configmaps", "")
		return code == http.StatusNotFound
	})
}

// testViewThroughProxy: the front-proxy leads to the shard of the consumer, wherever the
// provider is, and tells the provider of nobody who has not bound its export.
func testViewThroughProxy(t *testing.T, e *kit.Env) {
	provider := kit.NewWorkspaceClientOn(e, "proxied-provider", 1).ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k, other := kit.NewWorkspaceClient(e, "proxied").ForTest(t), kit.NewWorkspaceClient(e, "proxied-other").ForTest(t)
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	byPath := provider
	byPath.Config, byPath.ClusterName = e.Proxy(), "root:proxied-provider"
	in := byPath.ThroughExport("e", "root:proxied")
	require.Contains(t, in.Kubectl("get", "widgets", "-A"), "a")
	in.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 2))
	w := watchThrough(in, schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}, "")
	next(t, w, watch.Added, "b")
	in.Do(http.StatusOK, http.MethodDelete, kit.WidgetsPath+"/b", "")
	next(t, w, watch.Deleted, "b")
	schemas := k
	schemas.Config = e.Proxy()
	require.Len(t, tenants(schemaNames(schemas, k.ClusterName).Get(kit.APIsV1Alpha1+"apiresourceschemas")), 1)

	answers := map[string]bool{}
	for _, cluster := range []string{other.ClusterName, "root:proxied-other", "nowhere", "root:nowhere"} {
		for _, path := range []string{"/apis", "/apis/example.org/v1/widgets"} {
			code, says := byPath.ThroughExport("e", cluster).TryDo(http.MethodGet, path, "")
			require.Equal(t, http.StatusForbidden, code, says)
			answers[path+says] = true
		}
	}
	require.Len(t, answers, 2, "%v", answers)
	code, says := byPath.ThroughExport("e", "*").TryDo(http.MethodGet, "/apis", "")
	require.Equal(t, http.StatusBadRequest, code, says)
	require.Contains(t, says, "status.endpoints")
}

// testViewRights: a view opens to those who may use apiexports/content, and does not let
// them do more in consumers than the claims say.
func testViewRights(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "rights", 1)
	k := consumers[0]
	user := provider.As("user-1-token")
	all, in := user.ThroughExport("e", "*"), user.ThroughExport("e", k.ClusterName)
	nowhere, unbound := user.ThroughExport("e", "nowhere"), user.ThroughExport("e", provider.ClusterName)
	none := user.ThroughExport("none", k.ClusterName)
	denied := map[string]bool{}
	for _, view := range []kit.WorkspaceClient{all, in, nowhere, unbound, none} {
		for _, path := range []string{"/apis/example.org/v1/widgets", "/apis", "/api/v1/secrets"} {
			code, says := view.TryDo(http.MethodGet, path, "")
			require.Equal(t, http.StatusForbidden, code, says)
			_, reason, _ := strings.Cut(says, "cannot ")
			_, reason, _ = strings.Cut(reason, ": ")
			reason, _, _ = strings.Cut(reason, `","reason"`)
			denied[reason] = true
		}
	}
	require.Len(t, denied, 1, "a stranger learns nothing: %v", denied)

	provider.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"content"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["get","list","create","update"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	provider.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"content"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"content"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	in.Eventually("it is let in", func() bool {
		code, _ := in.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
		return code == http.StatusOK
	})
	in.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	all.Get("/apis/example.org/v1/widgets")
	code, says := in.TryDo(http.MethodDelete, kit.WidgetsPath+"/a", "")
	require.Equal(t, http.StatusForbidden, code, says)
	code, says = none.TryDo(http.MethodGet, "/apis", "")
	require.Equal(t, http.StatusForbidden, code, says)
	for _, view := range []kit.WorkspaceClient{nowhere, unbound} {
		code, says = view.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "no APIBinding")
	}
	// Directly the user has no rights there.
	code, says = k.As("user-1-token").TryDo(http.MethodGet, kit.WidgetsPath+"/a", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// A claim lets roles be made, as whoever may do all could, and reviews be asked. A
	// binding is only what the user could bind directly.
	const claims = `{"group":"rbac.authorization.k8s.io","resource":"clusterroles","verbs":["*"]%[1]s},{"group":"authorization.k8s.io","resource":"subjectaccessreviews","verbs":["create"]%[1]s},{"group":"apis.kcp.io","resource":"apibindings","verbs":["*"]%[1]s},{"group":"","resource":"serviceaccounts","verbs":["*"]%[1]s}`
	provider.ClaimInExport(`[` + fmt.Sprintf(claims, "") + `]`)
	k.AcceptClaims(`[` + fmt.Sprintf(claims, `,"selector":{"matchAll":true},"state":"Accepted"`) + `]`)
	in.Eventually("roles are let", func() bool {
		code, _ := in.TryDo(http.MethodPost, kit.RBACPath+"clusterroles", `{"metadata":{"name":"made"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)
		return code == http.StatusCreated
	})
	code, says = in.TryDo(http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "objects and their status")
	k.CreateExport("own", k.CreateSchema("v1", "gadgets", "size"))
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"somebody"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"somebody"}]}`)
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":%q,"resourceAttributes":{"verb":"get","resource":"secrets"}}}`
	in.Eventually("the review is the consumer's", func() bool {
		return kit.Field(in.Create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, "somebody"), "status", "allowed") == true
	})
	require.Equal(t, false, kit.Field(in.Create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, "user-1"), "status", "allowed"))
	code, says = in.TryDo(http.MethodPost, kit.APIsV1Alpha2+"apibindings", kit.WithKind(kit.APIsV1Alpha2+"apibindings", `{"metadata":{"name":"own"},"spec":{"reference":{"export":{"path":"`+k.ClusterName+`","name":"own"}}}}`))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "no permission to bind")
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["own"],"verbs":["bind"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"bind"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	in.BindPath(http.StatusCreated, "own", k.ClusterName, "own")
	k.UntilBinding("own", "Ready", "True <nil>")
}

// testClaimsOfAPIs: what another export offers can be claimed by its identity, within
// that one's maximal permission policy.
func testClaimsOfAPIs(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "apis", 1)
	k := consumers[0]
	other := kit.NewWorkspaceClient(e, "apis-other").ForTest(t)
	identity := other.CreateExport("gadgets", other.CreateSchema("v1", "gadgets", "size"))
	claim := `{"group":"example.org","resource":"gadgets","identityHash":"` + identity + `","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	all, in := provider.ThroughExport("e", "*"), provider.ThroughExport("e", k.ClusterName)
	// Nobody binds it: nothing is seen, and can be watched.
	all.Eventually("the claim is there", func() bool {
		code, _ := all.TryDo(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		return code == http.StatusOK
	})
	require.Empty(t, kit.Field(all.Get("/apis/example.org/v1/gadgets"), "items"))
	w := watchThrough(all, schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "gadgets"}, "")

	k.Bind("gadgets", other, "gadgets")
	k.UntilBinding("gadgets", "Ready", "True <nil>")
	gadgets := strings.Replace(kit.WidgetsPath, "widgets", "gadgets", 1)
	k.Create(gadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"a"}}`)
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	next(t, w, watch.Added, "a")
	require.Len(t, kit.Field(all.Get("/apis/example.org/v1/gadgets"), "items"), 1)
	in.Get(gadgets + "/a")

	other.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/gadgets", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	provider.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	user := in.As("user-1-token")
	user.Eventually("the policy holds in the view", func() bool {
		code, says := user.TryDo(http.MethodGet, gadgets+"/a", "")
		return code == http.StatusForbidden && strings.Contains(says, "maximal permission policy")
	})
	code, says := user.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
	require.Equal(t, http.StatusOK, code, says)
	other.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["gadgets"],"verbs":["get"]}]}`)
	other.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"read"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"read"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:user-1"}]}`)
	user.Eventually("and permits what it permits", func() bool {
		code, _ := user.TryDo(http.MethodGet, gadgets+"/a", "")
		return code == http.StatusOK
	})
	code, _ = user.TryDo(http.MethodDelete, gadgets+"/a", "")
	require.Equal(t, http.StatusForbidden, code)
}

// testViewInParts holds that a view of two logical clusters, each with one widget, is
// divided by logical cluster, and that a part deletes nothing elsewhere.
func testViewInParts(t *testing.T, all, inOne kit.WorkspaceClient, names map[string]string) {
	t.Helper()
	var parts []string
	for _, selector := range []string{kit.ShardRange("cluster", 0, 2), kit.ShardRange("cluster", 2, 4)} {
		query := "?shardSelector=" + url.QueryEscape(selector)
		part := all.Get("/apis/example.org/v1/widgets" + query)
		require.Equal(t, selector, kit.Field(part, "metadata", "shardInfo", "selector"))
		parts = append(parts, namesOf(part, names)...)
		if !slices.Contains(namesOf(part, names), "one/a") {
			inOne.Do(http.StatusOK, http.MethodDelete, kit.WidgetsPath+query, "")
		}
	}
	require.ElementsMatch(t, namesOf(all.Get("/apis/example.org/v1/widgets"), names), parts)
	require.Len(t, parts, 2)
}
