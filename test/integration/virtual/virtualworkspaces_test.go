package virtual

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// namesOf returns the names of objects, as <logical cluster>/<name>.
func namesOf(list *unstructured.Unstructured, clusters map[string]string) []string {
	var names []string
	for _, u := range kit.Items(list) {
		names = append(names, clusters[u.GetAnnotations()["kcp.io/cluster"]]+"/"+u.GetName())
	}
	slices.Sort(names)
	return names
}

// TestVirtualWorkspace checks that a provider can only access what consumers permit through the virtual workspace of its export.
func TestVirtualWorkspace(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.RunParallel("content", func(t *testing.T, e *kit.Env) { testVirtualWorkspaceContent(t, e) })
	e.RunParallel("claims", func(t *testing.T, e *kit.Env) { testClaims(t, e) })
	e.RunParallel("claims between list and watch", func(t *testing.T, e *kit.Env) { testClaimBetweenListAndWatch(t, e) })
	e.RunParallel("claims of a deleted export", func(t *testing.T, e *kit.Env) { testDeletedClaimant(t, e) })
	for shard, where := range []string{"", " of a provider on another shard"} {
		e.RunParallel("writers"+where, func(t *testing.T, e *kit.Env) { testClaimWriters(t, e, shard) })
		e.RunParallel("creations"+where, func(t *testing.T, e *kit.Env) { testCreations(t, e, shard) })
		e.RunParallel("claims of bindings"+where, func(t *testing.T, e *kit.Env) { testClaimOfBindings(t, e, shard) })
	}
	e.RunParallel("finalizers", func(t *testing.T, e *kit.Env) { testClaimFinalizers(t, e) })
	e.RunParallel("authorization", func(t *testing.T, e *kit.Env) { testAuthorization(t, e) })
	e.RunParallel("URLs", func(t *testing.T, e *kit.Env) { testVirtualWorkspaceURLs(t, e) })
	e.RunParallel("across shards", func(t *testing.T, e *kit.Env) { testVirtualWorkspaceAcrossShards(t, e) })
	e.RunParallel("front-proxy", func(t *testing.T, e *kit.Env) { testVirtualWorkspaceThroughProxy(t, e) })
	e.RunParallel("claims of APIs", func(t *testing.T, e *kit.Env) { testClaimsOfAPIs(t, e) })
	e.RunParallel("claims of built-in kinds", func(t *testing.T, e *kit.Env) { testClaimedKinds(t, e) })
	e.RunParallel("reviews", func(t *testing.T, e *kit.Env) { testClaimedReviews(t, e) })
	e.RunParallel("events", func(t *testing.T, e *kit.Env) { testClaimedEvents(t, e) })
}

func testVirtualWorkspaceContent(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "vw-content", 2)
	one, two := consumers[0], consumers[1]
	names := map[string]string{one.ClusterName: "one", two.ClusterName: "two"}
	one.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	two.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 2))
	all, inOne := provider.ThroughExport("e", "*"), provider.ThroughExport("e", one.ClusterName)

	// Objects of the exported API, of all consumers and of one.
	require.Equal(t, []string{"one/a", "two/b"}, namesOf(all.Get("/apis/example.org/v1/widgets"), names))
	require.Equal(t, []string{"one/a"}, namesOf(inOne.Get("/apis/example.org/v1/widgets"), names))
	testVirtualWorkspaceInParts(t, all, inOne, names)
	inOne.Create(kit.WidgetsPath, "%s", kit.Widget("c", "size", 3))
	inOne.Patch(kit.WidgetsPath+"/c/status", `{"status":{"ok":true}}`)
	inOne.Patch(kit.WidgetsPath+"/c", `{"spec":{"size":4}}`)
	inOne.Do(http.StatusCreated, http.MethodPatch, kit.WidgetsPath+"/applied?fieldManager=provider", kit.Widget("applied", "size", 7))
	require.EqualValues(t, 4, kit.Field(one.Get(kit.WidgetsPath+"/c"), "spec", "size"))
	inOne.Delete(kit.WidgetsPath + "/c")
	require.Equal(t, []string{"one/a", "one/applied", "two/b"}, namesOf(all.Get("/apis/example.org/v1/widgets?limit=500"), names))
	inOne.Delete(kit.WidgetsPath)
	require.Equal(t, []string{"two/b"}, namesOf(all.Get("/apis/example.org/v1/widgets"), names))

	// Bindings to the export, in both versions, read-only.
	provider.CreateExport("f", provider.CreateSchema("v2", "gadgets", "size"))
	one.BindReady("f", provider, "f")
	require.Equal(t, []string{"one/e", "two/e"}, namesOf(all.Get(kit.APIsV1Alpha2+"apibindings"), names))
	require.Equal(t, []string{"one/e", "two/e"}, namesOf(all.Get(kit.APIsV1Alpha1+"apibindings"), names))
	require.Equal(t, []string{"one/e"}, namesOf(inOne.Get(kit.APIsV1Alpha2+"apibindings"), names))
	inOne.RequireCode(http.StatusForbidden, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/e", "")
	inOne.RequireCode(http.StatusNotFound, http.MethodGet, kit.APIsV1Alpha2+"apibindings/f", "")

	// Discovery and OpenAPI contain nothing else.
	for _, vw := range []kit.WorkspaceClient{all, inOne} {
		var groups []string
		for _, g := range kit.Field(vw.Get("/apis"), "groups").([]any) {
			groups = append(groups, g.(map[string]any)["name"].(string))
		}
		require.ElementsMatch(t, []string{"apis.kcp.io", "example.org"}, groups)
		require.Contains(t, fmt.Sprint(vw.Get("/apis/apis.kcp.io/v1alpha2").Object), "apibindings")
		require.NotContains(t, fmt.Sprint(vw.Get("/apis/apis.kcp.io/v1alpha2").Object), "apiexports")
		require.Empty(t, kit.Field(vw.Get("/api"), "versions"))
		paths := kit.Field(vw.Get("/openapi/v3"), "paths").(map[string]any)
		require.Equal(t, []string{"api", "apis", "apis/apis.kcp.io", "apis/apis.kcp.io/v1alpha1", "apis/apis.kcp.io/v1alpha2", "apis/example.org", "apis/example.org/v1", "version"}, slices.Sorted(maps.Keys(paths)))
		require.Contains(t, fmt.Sprint(vw.Get("/openapi/v3/apis/example.org/v1").Object), "size")
		v2 := kit.Field(vw.Get("/openapi/v2"), "paths").(map[string]any)
		require.Contains(t, v2, "/apis/example.org/v1/widgets")
		require.NotContains(t, v2, "/api/v1/configmaps")
		vw.RequireCode(http.StatusNotFound, http.MethodGet, "/apis/apps", "")
		for name := range paths {
			require.Contains(t, fmt.Sprint(vw.Get("/openapi/v3/"+name).Object), "/"+name+"/")
		}
		require.NotEmpty(t, kit.Field(vw.Get("/version"), "gitVersion"))
	}

	// Resources must not be served if they are neither exported nor claimed.
	all.RequireCode(http.StatusNotFound, http.MethodGet, "/api/v1/configmaps", "")
	require.Contains(t, inOne.RequireCode(http.StatusForbidden, http.MethodGet, kit.ConfigMapsPath, ""), "no APIBinding in the logical cluster")
	all.RequireCode(http.StatusMethodNotAllowed, http.MethodPost, kit.WidgetsPath, kit.Widget("x", "size", 1))
	all.RequireCode(http.StatusBadRequest, http.MethodGet, kit.WidgetsPath, "")

	// A consumer that deletes its binding disappears.
	two.Delete(kit.APIsV1Alpha2 + "apibindings/e")
	inTwo := provider.ThroughExport("e", two.ClusterName)
	two.Eventually("the virtual workspace does not contain the binding", func() bool {
		code, _ := inTwo.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
		return code == http.StatusForbidden && len(namesOf(all.Get(kit.APIsV1Alpha2+"apibindings"), names)) == 1
	})
}

// testClaims checks that claimed objects are visible while the claim is accepted, also on open watches, and that accepting it writes
// no object.
func testClaims(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "claims", 2)
	one, two := consumers[0], consumers[1]
	names := map[string]string{one.ClusterName: "one", two.ClusterName: "two"}
	all, inOne := provider.ThroughExport("e", "*"), provider.ThroughExport("e", one.ClusterName)
	for _, k := range consumers {
		k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"a"}}`)
		k.Eventually("default and kube-system contain the root CA", func() bool {
			items, _ := kit.Field(k.Get("/api/v1/configmaps"), "items").([]any)
			return len(items) == 3
		})
	}
	version := one.Get(kit.ConfigMapsPath + "/a").GetResourceVersion()

	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch","create"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	all.UntilCode(http.StatusOK, http.MethodGet, "/api/v1/configmaps", "")
	require.Empty(t, namesOf(all.Get("/api/v1/configmaps"), names))
	w := kit.WatchThrough(all, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "")
	one.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	added := kit.Next(t, w, watch.Added, "a")
	require.Equal(t, version, added.GetResourceVersion(), "the object must not be written")
	require.Equal(t, []string{"one/a", "one/kube-root-ca.crt", "one/kube-root-ca.crt"}, namesOf(all.Get("/api/v1/configmaps"), names))
	require.Equal(t, []string{"one/a", "one/kube-root-ca.crt", "one/kube-root-ca.crt"}, namesOf(inOne.Get("/api/v1/configmaps"), names))

	// Claimed objects have a label, also in the consumer's logical cluster, which is not stored and cannot be set.
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
	kit.Next(t, w, watch.Modified, "a") // by the first apply
	written := one.Get(kit.ConfigMapsPath + "/a")
	written.Object["data"] = map[string]any{"x": "y"}
	text, err := written.MarshalJSON()
	require.NoError(t, err)
	tenant := one.BindAdmin("user-1")
	tenant.UntilCode(http.StatusOK, http.MethodPut, kit.ConfigMapsPath+"/a", string(text)) // writes the object as it was read
	kit.Next(t, w, watch.Modified, "a")

	// Only the verbs of the claim.
	inOne.Create(kit.ConfigMapsPath, `{"metadata":{"name":"made"}}`)
	kit.Next(t, w, watch.Added, "made")
	inOne.RequireCode(http.StatusForbidden, http.MethodDelete, kit.ConfigMapsPath+"/made", "")
	require.Contains(t, fmt.Sprint(inOne.Get("/api/v1").Object), "configmaps")
	require.NotContains(t, fmt.Sprint(inOne.Get("/api/v1").Object), "secrets")

	// The consumer rejects the claim.
	one.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Rejected"}]`)
	kit.Next(t, w, watch.Deleted, "a")
	require.Empty(t, namesOf(all.Get("/api/v1/configmaps"), names))
	require.Empty(t, claimed(one.Get(kit.ConfigMapsPath+"/a")))
	inOne.RequireCode(http.StatusForbidden, http.MethodGet, kit.ConfigMapsPath+"/a", "")

	// The export does not claim the resource any more.
	two.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	kit.Next(t, w, watch.Added, "a")
	provider.ClaimInExport(`[]`)
	kit.Next(t, w, watch.Deleted, "a")
	all.UntilDeleted("/api/v1/configmaps")
}

// testVirtualWorkspaceThroughProxy checks that the front-proxy forwards requests to the shard of the consumer, independent of the
// provider's shard, and gives no information about logical clusters that have not bound the export.
func testVirtualWorkspaceThroughProxy(t *testing.T, e *kit.Env) {
	provider := kit.NewWorkspaceClientOn(e, "proxied-provider", 1).ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k, other := kit.NewWorkspaceClient(e, "proxied").ForTest(t), kit.NewWorkspaceClient(e, "proxied-other").ForTest(t)
	k.BindReady("e", provider, "e")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	byPath := provider
	byPath.Config, byPath.ClusterName = e.Proxy(), "root:proxied-provider"
	in := byPath.ThroughExport("e", "root:proxied")
	require.Contains(t, in.Kubectl("get", "widgets", "-A"), "a")
	in.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 2))
	w := kit.WatchThrough(in, schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}, "")
	kit.Next(t, w, watch.Added, "b")
	in.Delete(kit.WidgetsPath + "/b")
	kit.Next(t, w, watch.Deleted, "b")
	schemas := k
	schemas.Config = e.Proxy()
	require.Len(t, tenants(boundSchemas(schemas, k.ClusterName).Get(kit.APIsV1Alpha1+"apiresourceschemas")), 1)

	for _, path := range []string{"/apis", "/apis/example.org/v1/widgets"} {
		var clients []kit.WorkspaceClient
		for _, cluster := range []string{other.ClusterName, "root:proxied-other", "nowhere", "root:nowhere"} {
			clients = append(clients, byPath.ThroughExport("e", cluster))
		}
		requireRefusal(t, path, clients...)
	}
	require.Contains(t, byPath.ThroughExport("e", "*").RequireCode(http.StatusBadRequest, http.MethodGet, "/apis", ""), "status.endpoints")
}

// requireRefusal checks that clients receive the same response with code 403. It sends the requests at the same time, because the
// front-proxy waits for unknown logical clusters, and returns the response.
func requireRefusal(t *testing.T, path string, clients ...kit.WorkspaceClient) string {
	t.Helper()
	responses := make([]string, len(clients))
	var requests errgroup.Group
	for i, k := range clients {
		requests.Go(func() error {
			code, body, err := kit.Send(t.Context(), k.Config, kit.Request{Path: k.PathPrefix + "/clusters/" + k.ClusterName + path})
			responses[i] = fmt.Sprint(code, " ", string(body))
			return err
		})
	}
	require.NoError(t, requests.Wait())
	require.Len(t, slices.Compact(responses), 1)
	require.Regexp(t, "^403 ", responses[0])
	return responses[0]
}

// testAuthorization checks that virtual workspaces require permission on apiexports/content, and permit no more in consumers than the
// claims.
func testAuthorization(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "rights", 1)
	k := consumers[0]
	user := provider.As("user-1-token")
	all, in := user.ThroughExport("e", "*"), user.ThroughExport("e", k.ClusterName)
	nowhere, unbound := user.ThroughExport("e", "nowhere"), user.ThroughExport("e", provider.ClusterName)
	none := user.ThroughExport("none", k.ClusterName)
	denied := map[string]bool{}
	for _, vw := range []kit.WorkspaceClient{all, in, nowhere, unbound, none} {
		for _, path := range []string{"/apis/example.org/v1/widgets", "/apis", "/api/v1/secrets"} {
			message := vw.RequireCode(http.StatusForbidden, http.MethodGet, path, "")
			_, reason, _ := strings.Cut(message, "cannot ")
			_, reason, _ = strings.Cut(reason, ": ")
			reason, _, _ = strings.Cut(reason, `","reason"`)
			denied[reason] = true
		}
	}
	require.Len(t, denied, 1, "the responses to unauthorized users must not differ: %v", denied)

	provider.Allow("content", "user-1", `{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["get","list","create","update"]},{"nonResourceURLs":["/"],"verbs":["access"]}`)
	in.UntilCode(http.StatusOK, http.MethodGet, "/apis/example.org/v1/widgets", "")
	in.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	all.Get("/apis/example.org/v1/widgets")
	in.RequireCode(http.StatusForbidden, http.MethodDelete, kit.WidgetsPath+"/a", "")
	none.RequireCode(http.StatusForbidden, http.MethodGet, "/apis", "")
	for _, vw := range []kit.WorkspaceClient{nowhere, unbound} {
		require.Contains(t, vw.RequireCode(http.StatusForbidden, http.MethodGet, "/apis/example.org/v1/widgets", ""), "no APIBinding")
	}
	// The user itself has no permissions in the workspace.
	k.As("user-1-token").RequireCode(http.StatusForbidden, http.MethodGet, kit.WidgetsPath+"/a", "")

	// A claim permits to create any role, and reviews. For a binding, the user itself must have permission.
	const claims = `{"group":"rbac.authorization.k8s.io","resource":"clusterroles","verbs":["*"]%[1]s},{"group":"authorization.k8s.io","resource":"subjectaccessreviews","verbs":["create"]%[1]s},{"group":"apis.kcp.io","resource":"apibindings","verbs":["*"]%[1]s},{"group":"","resource":"serviceaccounts","verbs":["*"]%[1]s}`
	provider.ClaimInExport(`[` + fmt.Sprintf(claims, "") + `]`)
	k.AcceptClaims(`[` + fmt.Sprintf(claims, `,"selector":{"matchAll":true},"state":"Accepted"`) + `]`)
	in.UntilCode(http.StatusCreated, http.MethodPost, kit.RBACPath+"clusterroles", `{"metadata":{"name":"made"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)
	require.Contains(t, in.RequireCode(http.StatusForbidden, http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`), "objects and their status")
	k.CreateExport("own", k.CreateSchema("v1", "gadgets", "size"))
	k.BindRole("user", "cluster-admin", "user")
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":%q,"resourceAttributes":{"verb":"get","resource":"secrets"}}}`
	in.Eventually("the review is evaluated in the consumer's workspace", func() bool {
		return kit.Field(in.Create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, "user"), "status", "allowed") == true
	})
	require.Equal(t, false, kit.Field(in.Create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, "user-1"), "status", "allowed"))
	require.Contains(t, in.RequireCode(http.StatusForbidden, http.MethodPost, kit.APIsV1Alpha2+"apibindings", kit.WithKind(kit.APIsV1Alpha2+"apibindings", `{"metadata":{"name":"own"},"spec":{"reference":{"export":{"path":"`+k.ClusterName+`","name":"own"}}}}`)), "no permission to bind")
	k.Allow("bind", "user-1", `{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["own"],"verbs":["bind"]},{"nonResourceURLs":["/"],"verbs":["access"]}`)
	in.BindPath(http.StatusCreated, "own", k.ClusterName, "own")
	k.UntilBinding("own", "Ready", "True <nil>")
}

// testClaimsOfAPIs checks that exported APIs can be claimed by identity, within their maximal permission policy.
func testClaimsOfAPIs(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "apis", 1)
	k := consumers[0]
	other := kit.NewWorkspaceClient(e, "apis-other").ForTest(t)
	identity := other.CreateExport("gadgets", other.CreateSchema("v1", "gadgets", "size"))
	claim := `{"group":"example.org","resource":"gadgets","identityHash":"` + identity + `","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	all, in := provider.ThroughExport("e", "*"), provider.ThroughExport("e", k.ClusterName)
	// If there is no binding, the resource is empty, and it must be possible to watch it.
	all.UntilCode(http.StatusOK, http.MethodGet, "/apis/example.org/v1/gadgets", "")
	require.Empty(t, kit.Field(all.Get("/apis/example.org/v1/gadgets"), "items"))
	w := kit.WatchThrough(all, schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "gadgets"}, "")

	k.BindReady("gadgets", other, "gadgets")
	gadgets := strings.Replace(kit.WidgetsPath, "widgets", "gadgets", 1)
	k.Create(gadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"a"}}`)
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	kit.Next(t, w, watch.Added, "a")
	require.Len(t, kit.Field(all.Get("/apis/example.org/v1/gadgets"), "items"), 1)
	in.Get(gadgets + "/a")

	other.Patch(kit.APIsV1Alpha2+"apiexports/gadgets", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	provider.BindRole("all", "cluster-admin", "user-1")
	user := in.As("user-1-token")
	user.Eventually("the policy applies in the virtual workspace", func() bool {
		code, message := user.TryDo(http.MethodGet, gadgets+"/a", "")
		return code == http.StatusForbidden && strings.Contains(message, "maximal permission policy")
	})
	user.RequireCode(http.StatusOK, http.MethodGet, "/apis/example.org/v1/widgets", "")
	other.Allow("read", "apis.kcp.io:binding:user-1", `{"apiGroups":["example.org"],"resources":["gadgets"],"verbs":["get"]}`)
	user.UntilCode(http.StatusOK, http.MethodGet, gadgets+"/a", "")
	user.RequireCode(http.StatusForbidden, http.MethodDelete, gadgets+"/a", "")
}

// testVirtualWorkspaceInParts checks that a virtual workspace of two logical clusters, each with one widget, is divided by logical cluster,
// and that the deletion of a part deletes nothing elsewhere.
func testVirtualWorkspaceInParts(t *testing.T, all, inOne kit.WorkspaceClient, names map[string]string) {
	t.Helper()
	var parts []string
	for _, selector := range []string{kit.ShardRange("cluster", 0, 2), kit.ShardRange("cluster", 2, 4)} {
		query := "?shardSelector=" + url.QueryEscape(selector)
		part := all.Get("/apis/example.org/v1/widgets" + query)
		require.Equal(t, selector, kit.Field(part, "metadata", "shardInfo", "selector"))
		parts = append(parts, namesOf(part, names)...)
		if !slices.Contains(namesOf(part, names), "one/a") {
			inOne.Delete(kit.WidgetsPath + query)
		}
	}
	require.ElementsMatch(t, namesOf(all.Get("/apis/example.org/v1/widgets"), names), parts)
	require.Len(t, parts, 2)
}
