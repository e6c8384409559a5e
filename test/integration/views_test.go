package integration

import (
	"fmt"
	"maps"
	"net/http"
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
)

const (
	rbacPath   = "/apis/rbac.authorization.k8s.io/v1/"
	configMaps = "/api/v1/namespaces/default/configmaps"
)

// claim adds claims to the export e, which must exist.
func (k apiKinds) claim(claims string) {
	k.t.Helper()
	k.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"permissionClaims":`+claims+`}}`)
}

// accept has the binding e accept claims, once they are exported.
func (k apiKinds) accept(claims string) {
	k.t.Helper()
	k.ask(http.StatusOK, http.MethodPatch, apisV2+"apibindings/e", `{"spec":{"permissionClaims":`+claims+`}}`)
	want := strings.Count(claims, `"Accepted"`)
	k.eventually("the claims have effect", func() bool {
		applied, _ := field(k.get(apisV2+"apibindings/e"), "status", "appliedPermissionClaims").([]any)
		return len(applied) == want
	})
}

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
	e := newEnv(t, two.Get(t))
	t.Run("content", func(t *testing.T) { testView(t, e) })
	t.Run("claims", func(t *testing.T) { testClaims(t, e) })
	t.Run("claims of nobody", func(t *testing.T) { testClaimantGoes(t, e) })
	for shard, where := range []string{"", " of a provider elsewhere"} {
		t.Run("selectors"+where, func(t *testing.T) { testClaimSelectors(t, e, shard) })
		t.Run("writers"+where, func(t *testing.T) { testClaimWriters(t, e, shard) })
		t.Run("creations"+where, func(t *testing.T) { testViewCreations(t, e, shard) })
		t.Run("the label"+where, func(t *testing.T) { testClaimLabel(t, e, shard) })
		t.Run("claims of bindings"+where, func(t *testing.T) { testClaimOfBindings(t, e, shard) })
	}
	t.Run("finalizers", func(t *testing.T) { testClaimFinalizers(t, e) })
	t.Run("rights", func(t *testing.T) { testViewRights(t, e) })
	t.Run("URLs", func(t *testing.T) { testViewURLs(t, e) })
	t.Run("front-proxy", func(t *testing.T) { testViewThroughProxy(t, e) })
	t.Run("claims of APIs", func(t *testing.T) { testClaimsOfAPIs(t, e) })
	t.Run("claims of built-in kinds", func(t *testing.T) { testClaimedKinds(t, e) })
	t.Run("reviews", func(t *testing.T) { testViewReviews(t, e) })
	t.Run("claims that nobody has accepted", func(t *testing.T) { testClaimsOfNone(t, e) })
	t.Run("events", func(t *testing.T) { testClaimedEvents(t, e) })
}

// consumersOf makes a provider with an export of widgets, and consumers that bind it.
func consumersOf(t *testing.T, e *env, name string, n int) (provider apiKinds, identity string, consumers []apiKinds) {
	t.Helper()
	return consumersOn(t, e, 0, name, n)
}

// consumersOn is consumersOf with the provider on another shard.
func consumersOn(t *testing.T, e *env, shard int, name string, n int) (provider apiKinds, identity string, consumers []apiKinds) {
	t.Helper()
	if shard > 0 {
		name += "-far"
	}
	provider = newProviderOn(e, name+"-provider", shard).in(t)
	identity = provider.export("e", provider.schema("v1", "widgets", "size"))
	for i := range n {
		k := newAPIKinds(e, fmt.Sprintf("%s-%d", name, i)).in(t)
		k.bindPath(http.StatusCreated, "e", provider.cluster, "e")
		k.until("e", "Ready", "True <nil>")
		provider.through("e", k.cluster).eventually("the view has heard of it", func() bool {
			code, _ := provider.through("e", k.cluster).status(http.MethodGet, "/apis/example.org/v1/widgets", "")
			return code == http.StatusOK
		})
		consumers = append(consumers, k)
	}
	return provider, identity, consumers
}

func testView(t *testing.T, e *env) {
	provider, _, consumers := consumersOf(t, e, "view", 2)
	one, two := consumers[0], consumers[1]
	names := map[string]string{one.cluster: "one", two.cluster: "two"}
	one.create(widgets, "%s", widget("a", "size", 1))
	two.create(widgets, "%s", widget("b", "size", 2))
	all, inOne := provider.through("e", "*"), provider.through("e", one.cluster)

	// Own objects, of all and of one.
	require.Equal(t, []string{"one/a", "two/b"}, namesOf(all.get("/apis/example.org/v1/widgets"), names))
	require.Equal(t, []string{"one/a"}, namesOf(inOne.get("/apis/example.org/v1/widgets"), names))
	testViewInParts(t, all, inOne, names)
	inOne.create(widgets, "%s", widget("c", "size", 3))
	inOne.ask(http.StatusOK, http.MethodPatch, widgets+"/c/status", `{"status":{"ok":true}}`)
	inOne.ask(http.StatusOK, http.MethodPatch, widgets+"/c", `{"spec":{"size":4}}`)
	inOne.ask(http.StatusCreated, http.MethodPatch, widgets+"/applied?fieldManager=provider", widget("applied", "size", 7))
	require.EqualValues(t, 4, field(one.get(widgets+"/c"), "spec", "size"))
	inOne.ask(http.StatusOK, http.MethodDelete, widgets+"/c", "")
	require.Equal(t, []string{"one/a", "one/applied", "two/b"}, namesOf(all.get("/apis/example.org/v1/widgets?limit=500"), names))
	inOne.ask(http.StatusOK, http.MethodDelete, widgets, "")
	require.Equal(t, []string{"two/b"}, namesOf(all.get("/apis/example.org/v1/widgets"), names))

	// Bindings, those to the export only, in both versions; they are not the provider's to write.
	provider.export("f", provider.schema("v2", "gadgets", "size"))
	one.bind("f", provider, "f")
	one.until("f", "Ready", "True <nil>")
	require.Equal(t, []string{"one/e", "two/e"}, namesOf(all.get(apisV2+"apibindings"), names))
	require.Equal(t, []string{"one/e", "two/e"}, namesOf(all.get(apisV1+"apibindings"), names))
	require.Equal(t, []string{"one/e"}, namesOf(inOne.get(apisV2+"apibindings"), names))
	code, says := inOne.status(http.MethodDelete, apisV2+"apibindings/e", "")
	require.Equal(t, http.StatusForbidden, code, says)
	code, _ = inOne.status(http.MethodGet, apisV2+"apibindings/f", "")
	require.Equal(t, http.StatusNotFound, code)

	// Documents tell of that, and of nothing else.
	for _, view := range []apiKinds{all, inOne} {
		groups := view.get("/apis")
		var told []string
		for _, g := range field(groups, "groups").([]any) {
			told = append(told, g.(map[string]any)["name"].(string))
		}
		slices.Sort(told)
		require.Equal(t, []string{"apis.kcp.io", "example.org"}, told)
		require.Contains(t, fmt.Sprint(view.get("/apis/example.org/v1").Object), "widgets/status")
		require.Contains(t, fmt.Sprint(view.get("/apis/apis.kcp.io/v1alpha2").Object), "apibindings")
		require.NotContains(t, fmt.Sprint(view.get("/apis/apis.kcp.io/v1alpha2").Object), "apiexports")
		require.Empty(t, field(view.get("/api"), "versions"))
		paths := field(view.get("/openapi/v3"), "paths").(map[string]any)
		require.Equal(t, []string{"apis/apis.kcp.io/v1alpha1", "apis/apis.kcp.io/v1alpha2", "apis/example.org/v1"}, slices.Sorted(maps.Keys(paths)))
		require.Contains(t, fmt.Sprint(view.get("/openapi/v3/apis/example.org/v1").Object), "size")
		v2 := field(view.get("/openapi/v2"), "paths").(map[string]any)
		require.Contains(t, v2, "/apis/example.org/v1/widgets")
		require.NotContains(t, v2, "/api/v1/configmaps")
		code, says := view.status(http.MethodGet, "/apis/apps", "")
		require.Equal(t, http.StatusNotFound, code, says)
		code, says = view.status(http.MethodGet, "/version", "")
		require.Equal(t, http.StatusNotFound, code, says)
	}

	// What nobody offers or claims is not there.
	code, says = all.status(http.MethodGet, "/api/v1/configmaps", "")
	require.Equal(t, http.StatusNotFound, code, says)
	code, says = inOne.status(http.MethodGet, configMaps, "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "no APIBinding in the logical cluster")
	code, says = all.status(http.MethodPost, widgets, widget("x", "size", 1))
	require.Equal(t, http.StatusMethodNotAllowed, code, says)
	code, says = all.status(http.MethodGet, widgets, "")
	require.Equal(t, http.StatusBadRequest, code, says)

	// A consumer that goes is seen no more.
	two.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/e", "")
	inTwo := provider.through("e", two.cluster)
	two.eventually("the binding is gone from the view", func() bool {
		code, _ := inTwo.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
		return code == http.StatusForbidden && len(namesOf(all.get(apisV2+"apibindings"), names)) == 1
	})
}

// follow watches a resource through a view.
func (k apiKinds) follow(gvr schema.GroupVersionResource, namespace string) watch.Interface {
	k.t.Helper()
	config := rest.CopyConfig(k.config)
	config.Host += k.view + "/clusters/" + k.cluster
	clients, err := dynamic.NewForConfig(config)
	require.NoError(k.t, err)
	w, err := clients.Resource(gvr).Namespace(namespace).Watch(k.t.Context(), metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true})
	require.NoError(k.t, err)
	k.t.Cleanup(w.Stop)
	return w
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
		case <-time.After(testTimeout):
			require.Fail(t, "no event", "%s %s", kind, name)
		}
	}
}

// testClaims: what is claimed is seen where the claim is accepted, and as long as it is,
// on open watches, too, and without a write to any object.
func testClaims(t *testing.T, e *env) {
	provider, _, consumers := consumersOf(t, e, "claims", 2)
	one, two := consumers[0], consumers[1]
	names := map[string]string{one.cluster: "one", two.cluster: "two"}
	all, inOne := provider.through("e", "*"), provider.through("e", one.cluster)
	for _, k := range consumers {
		k.create(configMaps, `{"metadata":{"name":"a"}}`)
		k.eventually("default and kube-system have their CA", func() bool {
			items, _ := field(k.get("/api/v1/configmaps"), "items").([]any)
			return len(items) == 3
		})
	}
	version := one.get(configMaps + "/a").GetResourceVersion()

	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch","create"]`
	provider.claim(`[` + claim + `}]`)
	all.eventually("nobody has accepted it", func() bool {
		code, _ := all.status(http.MethodGet, "/api/v1/configmaps", "")
		return code == http.StatusOK
	})
	require.Empty(t, namesOf(all.get("/api/v1/configmaps"), names))
	w := all.follow(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "")
	one.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	added := next(t, w, watch.Added, "a")
	require.Equal(t, version, added.GetResourceVersion(), "nothing is written")
	require.Equal(t, []string{"one/a", "one/kube-root-ca.crt", "one/kube-root-ca.crt"}, namesOf(all.get("/api/v1/configmaps"), names))
	require.Equal(t, []string{"one/a", "one/kube-root-ca.crt", "one/kube-root-ca.crt"}, namesOf(inOne.get("/api/v1/configmaps"), names))

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
	require.Equal(t, claimed(added), claimed(one.get(configMaps+"/a")))
	require.Empty(t, claimed(two.get(configMaps+"/a")))
	require.Len(t, field(one.get("/api/v1/configmaps?labelSelector="+strings.Replace(claimed(added)[0], "=", "%3D", 1)), "items"), 3)
	written := one.get(configMaps + "/a")
	written.Object["data"] = map[string]any{"x": "y"}
	text, err := written.MarshalJSON()
	require.NoError(t, err)
	tenant := one.as("user-1-token")
	one.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	tenant.eventually("the tenant may write what it has read", func() bool {
		code, _ := tenant.status(http.MethodPut, configMaps+"/a", string(text))
		return code == http.StatusOK
	})
	next(t, w, watch.Modified, "a")

	// The verbs of the claim, and no others.
	inOne.create(configMaps, `{"metadata":{"name":"made"}}`)
	next(t, w, watch.Added, "made")
	code, says := inOne.status(http.MethodDelete, configMaps+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, fmt.Sprint(inOne.get("/api/v1").Object), "configmaps")
	require.NotContains(t, fmt.Sprint(inOne.get("/api/v1").Object), "secrets")

	// Rejected.
	one.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Rejected"}]`)
	next(t, w, watch.Deleted, "a")
	require.Empty(t, namesOf(all.get("/api/v1/configmaps"), names))
	require.Empty(t, claimed(one.get(configMaps+"/a")))
	code, says = inOne.status(http.MethodGet, configMaps+"/a", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// Not claimed any more.
	two.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	next(t, w, watch.Added, "a")
	provider.claim(`[]`)
	next(t, w, watch.Deleted, "a")
	all.eventually("there is nothing like it", func() bool {
		code, _ := all.status(http.MethodGet, "/api/v1/configmaps", "")
		return code == http.StatusNotFound
	})
}

// testClaimSelectors: selectors bind who reads and who writes.
func testClaimSelectors(t *testing.T, e *env, shard int) {
	provider, _, consumers := consumersOn(t, e, shard, "selectors", 1)
	k := consumers[0]
	in := provider.through("e", k.cluster)
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.claim(`[` + claim + `}]`)
	k.create(configMaps, `{"metadata":{"name":"seen","labels":{"for":"provider"}}}`)
	k.create(configMaps, `{"metadata":{"name":"hidden"}}`)
	k.accept(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	in.eventually("the index has it", func() bool {
		code, _ := in.status(http.MethodGet, configMaps+"/seen", "")
		return code == http.StatusOK
	})
	names := func() []string { return namesOf(in.get(configMaps), map[string]string{k.cluster: "k"}) }
	require.Equal(t, []string{"k/seen"}, names())
	for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPut: `{"metadata":{"name":"hidden"}}`} {
		code, says := in.status(method, configMaps+"/hidden", body)
		require.Equal(t, http.StatusNotFound, code, "%s: %s", method, says)
	}
	// Labels that are missing are added, and others refused.
	in.create(configMaps, `{"metadata":{"name":"made"}}`)
	require.Equal(t, "provider", k.get(configMaps + "/made").GetLabels()["for"])
	code, says := in.status(http.MethodPost, configMaps, `{"metadata":{"name":"other","labels":{"for":"others"}}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "for=provider")
	in.ask(http.StatusOK, http.MethodPatch, configMaps+"/made", `{"metadata":{"labels":null},"data":{"a":"b"}}`)
	require.Equal(t, "provider", k.get(configMaps + "/made").GetLabels()["for"])
	in.ask(http.StatusOK, http.MethodDelete, configMaps, "")
	k.get(configMaps + "/hidden")

	// Expressions have to match before and after.
	k.accept(`[` + claim + `,"selector":{"matchExpressions":[{"key":"for","operator":"In","values":["a","b"]}]},"state":"Accepted"}]`)
	in.eventually("the index has it", func() bool {
		code, _ := in.status(http.MethodPost, configMaps, `{"metadata":{"name":"expression","labels":{"for":"a"}}}`)
		return code == http.StatusCreated
	})
	code, says = in.status(http.MethodPost, configMaps, `{"metadata":{"name":"none"}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	in.ask(http.StatusOK, http.MethodPatch, configMaps+"/expression", `{"metadata":{"labels":{"for":"b"}}}`)
	in.ask(http.StatusForbidden, http.MethodPatch, configMaps+"/expression", `{"metadata":{"labels":{"for":"c"}}}`)
}

// testViewThroughProxy: the front-proxy leads to the shard of the consumer, wherever the
// provider is, and tells the provider of nobody who has not bound its export.
func testViewThroughProxy(t *testing.T, e *env) {
	provider := newAPIKindsOn(e, "proxied-provider", 1).in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	k, other := newAPIKinds(e, "proxied").in(t), newAPIKinds(e, "proxied-other").in(t)
	k.bind("e", provider, "e")
	k.until("e", "Ready", "True <nil>")
	k.create(widgets, "%s", widget("a", "size", 1))

	byPath := provider
	byPath.config, byPath.cluster = e.Proxy(), "root:proxied-provider"
	in := byPath.through("e", "root:proxied")
	require.Contains(t, in.kubectl("get", "widgets", "-A"), "a")
	in.create(widgets, "%s", widget("b", "size", 2))
	w := in.follow(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}, "")
	next(t, w, watch.Added, "b")
	in.ask(http.StatusOK, http.MethodDelete, widgets+"/b", "")
	next(t, w, watch.Deleted, "b")
	schemas := k
	schemas.config = e.Proxy()
	require.Len(t, tenants(schemas.schemas(k.cluster).get(apisV1+"apiresourceschemas")), 1)

	answers := map[string]bool{}
	for _, cluster := range []string{other.cluster, "root:proxied-other", "nowhere", "root:nowhere"} {
		for _, path := range []string{"/apis", "/apis/example.org/v1/widgets"} {
			code, says := byPath.through("e", cluster).status(http.MethodGet, path, "")
			require.Equal(t, http.StatusForbidden, code, says)
			answers[path+says] = true
		}
	}
	require.Len(t, answers, 2, "%v", answers)
	code, says := byPath.through("e", "*").status(http.MethodGet, "/apis", "")
	require.Equal(t, http.StatusBadRequest, code, says)
	require.Contains(t, says, "status.endpoints")
}

// testViewRights: a view opens to those who may use apiexports/content, and does not let
// them do more in consumers than the claims say.
func testViewRights(t *testing.T, e *env) {
	provider, _, consumers := consumersOf(t, e, "rights", 1)
	k := consumers[0]
	user := provider.as("user-1-token")
	all, in := user.through("e", "*"), user.through("e", k.cluster)
	nowhere, unbound := user.through("e", "nowhere"), user.through("e", provider.cluster)
	none := user.through("none", k.cluster)
	denied := map[string]bool{}
	for _, view := range []apiKinds{all, in, nowhere, unbound, none} {
		for _, path := range []string{"/apis/example.org/v1/widgets", "/apis", "/api/v1/secrets"} {
			code, says := view.status(http.MethodGet, path, "")
			require.Equal(t, http.StatusForbidden, code, says)
			_, reason, _ := strings.Cut(says, "cannot ")
			_, reason, _ = strings.Cut(reason, ": ")
			reason, _, _ = strings.Cut(reason, `","reason"`)
			denied[reason] = true
		}
	}
	require.Len(t, denied, 1, "a stranger learns nothing: %v", denied)

	provider.create(rbacPath+"clusterroles", `{"metadata":{"name":"content"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["get","list","create","update"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	provider.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"content"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"content"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	in.eventually("it is let in", func() bool {
		code, _ := in.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
		return code == http.StatusOK
	})
	in.create(widgets, "%s", widget("a", "size", 1))
	all.get("/apis/example.org/v1/widgets")
	code, says := in.status(http.MethodDelete, widgets+"/a", "")
	require.Equal(t, http.StatusForbidden, code, says)
	code, says = none.status(http.MethodGet, "/apis", "")
	require.Equal(t, http.StatusForbidden, code, says)
	for _, view := range []apiKinds{nowhere, unbound} {
		code, says = view.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "no APIBinding")
	}
	// Directly the user has no rights there.
	code, says = k.as("user-1-token").status(http.MethodGet, widgets+"/a", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// A claim lets roles be made, as whoever may do all could, and reviews be asked. A
	// binding is only what the user could bind directly.
	const claims = `{"group":"rbac.authorization.k8s.io","resource":"clusterroles","verbs":["*"]%[1]s},{"group":"authorization.k8s.io","resource":"subjectaccessreviews","verbs":["create"]%[1]s},{"group":"apis.kcp.io","resource":"apibindings","verbs":["*"]%[1]s},{"group":"","resource":"serviceaccounts","verbs":["*"]%[1]s}`
	provider.claim(`[` + fmt.Sprintf(claims, "") + `]`)
	k.accept(`[` + fmt.Sprintf(claims, `,"selector":{"matchAll":true},"state":"Accepted"`) + `]`)
	in.eventually("roles are let", func() bool {
		code, _ := in.status(http.MethodPost, rbacPath+"clusterroles", `{"metadata":{"name":"made"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)
		return code == http.StatusCreated
	})
	code, says = in.status(http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "objects and their status")
	k.export("own", k.schema("v1", "gadgets", "size"))
	k.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"somebody"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"somebody"}]}`)
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":%q,"resourceAttributes":{"verb":"get","resource":"secrets"}}}`
	in.eventually("the review is the consumer's", func() bool {
		return field(in.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, "somebody"), "status", "allowed") == true
	})
	require.Equal(t, false, field(in.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, "user-1"), "status", "allowed"))
	code, says = in.status(http.MethodPost, apisV2+"apibindings", typed(apisV2+"apibindings", `{"metadata":{"name":"own"},"spec":{"reference":{"export":{"path":"`+k.cluster+`","name":"own"}}}}`))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "no permission to bind")
	k.create(rbacPath+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["own"],"verbs":["bind"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	k.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"bind"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	in.bindPath(http.StatusCreated, "own", k.cluster, "own")
	k.until("own", "Ready", "True <nil>")
}

// testClaimsOfAPIs: what another export offers can be claimed by its identity, within
// that one's maximal permission policy.
func testClaimsOfAPIs(t *testing.T, e *env) {
	provider, _, consumers := consumersOf(t, e, "apis", 1)
	k := consumers[0]
	other := newAPIKinds(e, "apis-other").in(t)
	identity := other.export("gadgets", other.schema("v1", "gadgets", "size"))
	claim := `{"group":"example.org","resource":"gadgets","identityHash":"` + identity + `","verbs":["*"]`
	provider.claim(`[` + claim + `}]`)
	all, in := provider.through("e", "*"), provider.through("e", k.cluster)
	// Nobody binds it: nothing is seen, and can be watched.
	all.eventually("the claim is there", func() bool {
		code, _ := all.status(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		return code == http.StatusOK
	})
	require.Empty(t, field(all.get("/apis/example.org/v1/gadgets"), "items"))
	w := all.follow(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "gadgets"}, "")

	k.bind("gadgets", other, "gadgets")
	k.until("gadgets", "Ready", "True <nil>")
	gadgets := strings.Replace(widgets, "widgets", "gadgets", 1)
	k.create(gadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"a"}}`)
	k.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	next(t, w, watch.Added, "a")
	require.Len(t, field(all.get("/apis/example.org/v1/gadgets"), "items"), 1)
	in.get(gadgets + "/a")

	other.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/gadgets", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	provider.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	user := in.as("user-1-token")
	user.eventually("the policy holds in the view", func() bool {
		code, says := user.status(http.MethodGet, gadgets+"/a", "")
		return code == http.StatusForbidden && strings.Contains(says, "maximal permission policy")
	})
	code, says := user.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
	require.Equal(t, http.StatusOK, code, says)
	other.create(rbacPath+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["gadgets"],"verbs":["get"]}]}`)
	other.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"read"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"read"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:user-1"}]}`)
	user.eventually("and permits what it permits", func() bool {
		code, _ := user.status(http.MethodGet, gadgets+"/a", "")
		return code == http.StatusOK
	})
	code, _ = user.status(http.MethodDelete, gadgets+"/a", "")
	require.Equal(t, http.StatusForbidden, code)
}
