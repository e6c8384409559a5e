package virtual

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// sliceOf contains the resources of the endpoint slices of cached resources, and their field that names the cached resource.
var sliceOf = map[string][2]string{
	"CachedResource":        {"cachedresourceendpointslices", "cachedResource"},
	"ClusterCachedResource": {"clustercachedresourceendpointslices", "clusterCachedResource"},
}

// offers is a provider that exports a cached resource.
type offers struct {
	kit.WorkspaceClient

	kind, plural, objects, identity string
}

// offer defines a kind, and creates a cached resource of either kind, an endpoint slice, and an export with virtual storage, all
// named plural.
func offer(k kit.WorkspaceClient, kind, plural, more string) offers {
	k.T.Helper()
	k.DefineClusterScoped(plural, "Flavor")
	k.CreateCachedResource(kind, plural, more)
	now := k.UntilCached(kind, plural, 0, 0)
	identity, _ := kit.Field(now, "status", "identityHash").(string)
	k.Create(kit.CachePath+sliceOf[kind][0], `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"%[1]sEndpointSlice","metadata":{"name":%[2]q},"spec":{"%[3]s":{"name":%[2]q},"export":{"name":%[2]q}}}`, kind, plural, sliceOf[kind][1])
	k.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":%[1]q},"spec":{"resources":[{"group":"shared.example.org","name":%[1]q,"schema":%[2]q,"storage":{"virtual":{"reference":{"apiGroup":"cache.kcp.io","kind":"%[3]sEndpointSlice","name":%[1]q},"identityHash":%[4]q}}}]}}`,
		plural, clusterSchema(k, "v1", plural, "Flavor"), kind, identity)
	k.IdentityOf(plural)
	return offers{WorkspaceClient: k, kind: kind, plural: plural, objects: "/apis/shared.example.org/v1/" + plural, identity: identity}
}

// hasEndpoints waits until the slice has these endpoints.
func (o offers) hasEndpoints(want ...string) {
	o.T.Helper()
	kit.EventuallyEqual(o.Env, want, func() (found []string) {
		all, _ := kit.Field(o.slice(), "status", "endpoints").([]any)
		for _, endpoint := range all {
			found = append(found, fmt.Sprint(endpoint.(map[string]any)["url"]))
		}
		return found
	}, "endpoints of the slice")
}

func (o offers) slice() *unstructured.Unstructured {
	return o.Get(kit.CachePath + sliceOf[o.kind][0] + "/" + o.plural)
}

// url returns the URL of the virtual workspace of the slice on a shard.
func (o offers) url(shard int) string {
	return o.VirtualWorkspaces(shard) + "/services/replication/" + o.ClusterName + "/" + o.plural
}

// TestCachedSlices checks that endpoint slices of cached resources, of both kinds, contain the URLs of shards with consumers of the
// export, while all objects to which they refer exist.
func TestCachedSlices(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for kind, shard := range map[string]int{"CachedResource": 0, "ClusterCachedResource": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			plural := "slices" + fmt.Sprint(shard)
			o := offer(kit.NewWorkspaceClientOn(e, "sliced-"+kit.CachedResourcePlural[kind], shard).ForTest(t), kind, plural, "")
			near, far := kit.NewWorkspaceClientOn(e, "near-"+plural, shard).ForTest(t), kit.NewWorkspaceClientOn(e, "far-"+plural, 1-shard).ForTest(t)
			o.untilSlice("APIExportValid", "True <nil>")
			o.untilSlice("ResourceValid", "True <nil>")
			o.untilSlice("PartitionValid", "True <nil>")
			o.hasEndpoints()
			far.BindPath(http.StatusCreated, plural, o.ClusterName, plural)
			o.hasEndpoints(o.url(1 - shard))
			near.BindPath(http.StatusCreated, plural, o.ClusterName, plural)
			o.hasEndpoints(o.url(0), o.url(1))

			at := kit.CachePath + sliceOf[kind][0] + "/" + plural
			for _, change := range []string{`{"spec":{"%s":{"name":"other"}}}`, `{"spec":{"%.0sexport":{"name":"other"}}}`} {
				o.Do(http.StatusUnprocessableEntity, http.MethodPatch, at, fmt.Sprintf(change, sliceOf[kind][1]))
			}
			o.Patch(at, `{"spec":{"partition":"none"}}`)
			o.untilSlice("PartitionValid", "False PartitionInvalidReference")
			o.hasEndpoints()
			o.Patch(at, `{"spec":{"partition":""}}`)
			o.hasEndpoints(o.url(0), o.url(1))

			far.Delete(kit.APIsV1Alpha2 + "apibindings/" + plural)
			o.hasEndpoints(o.url(shard))
			o.Delete(kit.CachePath + kit.CachedResourcePlural[kind] + "/" + plural)
			o.untilSlice("ResourceValid", "False CachedResourceNotFound")
			o.hasEndpoints()
			o.Delete(kit.APIsV1Alpha2 + "apiexports/" + plural)
			o.untilSlice("APIExportValid", "False APIExportInvalidReference")
		})
	}
}

// untilSlice waits until a condition of the slice has a status and reason.
func (o offers) untilSlice(kind, want string) {
	o.T.Helper()
	o.UntilCondition(kit.CachePath+sliceOf[o.kind][0]+"/"+o.plural, kind, want)
}

// object creates an object of the exported kind.
func (o offers) object(name, more string) {
	o.T.Helper()
	o.Create(o.objects, `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":%q%s},"spec":{"cpus":4}}`, name, more)
}

// TestVirtualStorage checks that consumers on any shard get, list and watch the replicas of their provider, at their own URL, and
// write nothing.
func TestVirtualStorage(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for kind, shard := range map[string]int{"CachedResource": 0, "ClusterCachedResource": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			testVirtualStorage(t, e, kind, shard)
		})
	}
}

func testVirtualStorage(t *testing.T, e *kit.Env, kind string, shard int) {
	plural := "virtual" + fmt.Sprint(shard)
	o := offer(kit.NewWorkspaceClientOn(e, "virtual-"+kit.CachedResourcePlural[kind], shard).ForTest(t), kind, plural, `,"labelSelector":{"matchExpressions":[{"key":"hidden","operator":"DoesNotExist"}]}`)
	o.object("large", `,"labels":{"size":"l"},"annotations":{"note":"x"}`)
	o.object("secret", `,"labels":{"hidden":"yes"}`)
	o.object("small", `,"labels":{"size":"s"}`)
	// If a shard has no consumers, it must serve the replicas on request.
	kit.UntilListed(kit.WorkspaceClient{Env: o.Env, Config: o.Shard(1 - shard), PathPrefix: "/services/replication/" + o.ClusterName + "/" + o.plural, ClusterName: "*"}.ForTest(t), o.objects, "large", "small")
	for at, name := range []string{"near-", "far-"} {
		k := kit.NewWorkspaceClientOn(e, name+plural, (shard+at)%2).ForTest(t)
		bound := k.BindPathReady(plural, o.ClusterName, plural)
		require.Nil(t, kit.Field(bound, "status", "boundResources").([]any)[0].(map[string]any)["storageVersions"], "the consumer's shard must not store objects")

		all := kit.UntilListed(k, o.objects, "large", "small")
		original := o.Get(o.objects + "/large")
		require.Equal(t, original.GetUID(), all[0].GetUID())
		require.Equal(t, fmt.Sprint(original.Object["spec"]), fmt.Sprint(all[0].Object["spec"]))
		require.Equal(t, map[string]string{"kcp.io/cluster": k.ClusterName, "note": "x"}, all[0].GetAnnotations())
		require.Equal(t, "Flavor", all[0].GetKind())
		require.Equal(t, "large", k.Get(o.objects+"/large").GetName())
		k.RequireCode(http.StatusNotFound, http.MethodGet, o.objects+"/secret", "")
		kit.UntilListed(k, o.objects+"?labelSelector=size%3Ds", "small")
		kit.UntilListed(k, o.objects+"?fieldSelector=metadata.name%3Dlarge", "large")
		page := k.Get(o.objects + "?limit=1")
		require.Len(t, kit.Field(page, "items"), 1)
		token, _ := kit.Field(page, "metadata", "continue").(string)
		kit.UntilListed(k, o.objects+"?limit=1&continue="+url.QueryEscape(token), "small")

		testVirtualIsReadOnly(t, k, o)
		testVirtualDocuments(t, k, o)
		testVirtualWatch(t, k, o)
		kit.UntilListed(k, o.objects, "large", "small")
		testReplicationVirtualWorkspace(t, k, o, (shard+at)%2)
		testVirtualThroughExport(t, k, o, (shard+at)%2)

		// The deletion of a binding deletes no objects.
		k.DeleteAndWait(kit.APIsV1Alpha2 + "apibindings/" + plural)
		k.UntilDeleted(o.objects)
		require.NotNil(t, o.Get(o.objects+"/large"))
	}
	testVirtualDeletion(t, o, kit.NewWorkspaceClientOn(e, "last-"+plural, 1-shard).ForTest(t))
}

// testVirtualIsReadOnly checks that each write is rejected with 405.
func testVirtualIsReadOnly(t *testing.T, k kit.WorkspaceClient, o offers) {
	const body = `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":"x"}}`
	for path, methods := range map[string][]string{o.objects: {http.MethodPost, http.MethodDelete}, o.objects + "/large": {http.MethodPut, http.MethodPatch, http.MethodDelete}} {
		for _, method := range methods {
			require.Contains(t, k.RequireCode(http.StatusMethodNotAllowed, method, path, body), "read-only replicas")
		}
	}
	k.RequireCode(http.StatusNotFound, http.MethodGet, o.objects+"/large/status", "")
	kit.UntilListed(o.WorkspaceClient, o.objects, "large", "secret", "small")
}

// testVirtualDocuments checks discovery, OpenAPI and tables.
func testVirtualDocuments(t *testing.T, k kit.WorkspaceClient, o offers) {
	k.UntilShows("/apis/shared.example.org/v1", `"verbs":["get","list","watch"]`)
	k.UntilShows("/openapi/v3/apis/shared.example.org/v1", "Flavor")
	k.UntilShows("/openapi/v3/apis/shared.example.org/v1", o.plural)
	table := kit.RequireCode(t, k.Config, kit.Request{Path: "/clusters/" + k.ClusterName + o.objects, Header: http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}}, http.StatusOK)
	require.Contains(t, string(table), `"kind":"Table"`)
	require.Contains(t, string(table), "large")
}

// testVirtualWatch checks that a watch receives changes, including objects that start and stop to match the selector of the cached
// resource.
func testVirtualWatch(t *testing.T, k kit.WorkspaceClient, o offers) {
	version := k.Get(o.objects).GetResourceVersion()
	w := kit.WatchThrough(k, schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: o.plural}, "")
	defer w.Stop()
	o.object("tiny", "")
	added := kit.Next(t, w, watch.Added, "tiny")
	require.Equal(t, k.ClusterName, added.GetAnnotations()["kcp.io/cluster"])
	o.Patch(o.objects+"/tiny", `{"spec":{"cpus":1}}`)
	kit.Next(t, w, watch.Modified, "tiny")
	o.Patch(o.objects+"/tiny", `{"metadata":{"labels":{"hidden":"now"}}}`)
	kit.Next(t, w, watch.Deleted, "tiny")
	o.Delete(o.objects + "/tiny")

	// A watch can start at the version of a list, and not at versions of the provider.
	require.Contains(t, watchBriefly(k, o, "resourceVersion="+version), `"type":"ADDED"`)
	require.Contains(t, watchBriefly(k, o, "resourceVersion="+o.Get(o.objects).GetResourceVersion()), `410`)
	kit.InitialEvents(t, k.Config, "/clusters/"+k.ClusterName+o.objects+"?")
}

// watchBriefly returns the events of a watch of one second, or of a longer one if it receives none.
func watchBriefly(k kit.WorkspaceClient, o offers, query string) (events string) {
	k.T.Helper()
	for seconds := 1; events == ""; seconds *= 2 {
		code, urls := kit.Do(k.T, k.Config, kit.Request{Path: fmt.Sprintf("/clusters/%s%s?watch=1&timeoutSeconds=%d&%s", k.ClusterName, o.objects, seconds, query)})
		require.Contains(k.T, []int{http.StatusOK, http.StatusGone}, code, "%s", urls)
		require.Less(k.T, seconds, 60, "the watch received no event")
		events = string(urls)
	}
	return events
}

// testReplicationVirtualWorkspace checks that users with permission on the content of the export read the replicas at the endpoints of the
// slice, and that no user can write there.
func testReplicationVirtualWorkspace(t *testing.T, k kit.WorkspaceClient, o offers, shard int) {
	all := kit.WorkspaceClient{Env: o.Env, Config: o.Shard(shard), PathPrefix: "/services/replication/" + o.ClusterName + "/" + o.plural, ClusterName: "*"}.ForTest(t)
	one := all.In(k.ClusterName)
	found := kit.UntilListed(all, o.objects, "large", "small")
	require.Equal(t, o.ClusterName, found[0].GetAnnotations()["kcp.io/cluster"])
	found = kit.UntilListed(one, o.objects, "large", "small")
	require.Equal(t, k.ClusterName, found[0].GetAnnotations()["kcp.io/cluster"])
	require.Equal(t, "large", one.Get(o.objects+"/large").GetName())
	require.Contains(t, fmt.Sprint(all.Get("/apis/shared.example.org/v1").Object), o.plural)

	refused := func(at kit.WorkspaceClient, want int, method, path string) {
		t.Helper()
		at.RequireCode(want, method, path, `{}`)
	}
	require.Equal(t, map[string]any{o.plural: []any{"get", "list", "watch"}}, verbsOf(one, "/apis/shared.example.org/v1"))
	require.Equal(t, map[string]any{o.plural: []any{"list", "watch"}}, verbsOf(all, "/apis/shared.example.org/v1"))
	refused(one, http.StatusMethodNotAllowed, http.MethodPost, o.objects)
	refused(one, http.StatusMethodNotAllowed, http.MethodDelete, o.objects+"/large")
	refused(all, http.StatusMethodNotAllowed, http.MethodDelete, o.objects)
	refused(all, http.StatusMethodNotAllowed, http.MethodGet, o.objects+"/large")
	refused(one, http.StatusNotFound, http.MethodGet, "/api/v1/secrets")
	elsewhere := one.In(o.ClusterName)
	refused(elsewhere, http.StatusForbidden, http.MethodGet, o.objects)
	nowhere := one
	nowhere.PathPrefix += "x"
	refused(nowhere, http.StatusForbidden, http.MethodGet, o.objects)

	// A user must have the verb on apiexports/content, and access to the provider's workspace.
	user := one.As("user-1-token")
	refused(user, http.StatusForbidden, http.MethodGet, o.objects)
	if code, _ := o.TryDo(http.MethodGet, kit.RBACPath+"clusterroles/content", ""); code == http.StatusNotFound {
		o.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"content"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":[%q],"verbs":["get","list","watch"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`, o.plural)
		o.BindRole("content", "content", "user-1")
	}
	kit.UntilListed(user, o.objects, "large", "small")
	refused(user, http.StatusForbidden, http.MethodPost, o.objects)
	o.Delete(kit.RBACPath + "clusterrolebindings/content")
	o.Delete(kit.RBACPath + "clusterroles/content")
	user.UntilCode(http.StatusForbidden, http.MethodGet, o.objects, "")
}

// testVirtualThroughExport checks that the virtual workspace of the export serves the replicas read-only, and does not suggest to bind
// the export if it is bound.
func testVirtualThroughExport(t *testing.T, k kit.WorkspaceClient, o offers, shard int) {
	all := kit.WorkspaceClient{Env: o.Env, Config: o.Shard(shard), PathPrefix: "/services/apiexport/" + o.ClusterName + "/" + o.plural, ClusterName: "*"}.ForTest(t)
	one := all.In(k.ClusterName)
	kit.UntilListed(all, o.objects, "large", "small")
	kit.UntilListed(one, o.objects, "large", "small")
	require.Equal(t, "large", one.Get(o.objects+"/large").GetName())
	require.Equal(t, map[string]any{o.plural: []any{"get", "list", "watch"}}, verbsOf(one, "/apis/shared.example.org/v1"))
	require.Equal(t, []any{"get", "list", "watch"}, verbsOf(one, "/apis/apis.kcp.io/v1alpha2")["apibindings"])
	for method, path := range map[string]string{http.MethodPost: o.objects, http.MethodDelete: o.objects + "/large"} {
		one.RequireCode(http.StatusMethodNotAllowed, method, path, `{}`)
	}
	require.NotContains(t, one.RequireCode(http.StatusForbidden, http.MethodGet, "/api/v1/secrets", ""), "bind it there")
	unbound := one.In(o.ClusterName)
	require.Contains(t, unbound.RequireCode(http.StatusForbidden, http.MethodGet, o.objects, ""), "bind it there")
}

// testVirtualDeletion checks that the replicas are deleted with the cached resource, that reads report the reason, and that a new cached
// resource restores them.
func testVirtualDeletion(t *testing.T, o offers, k kit.WorkspaceClient) {
	k.BindPathReady(o.plural, o.ClusterName, o.plural)
	kit.UntilListed(k, o.objects, "large", "small")
	refer := func(slice string) {
		o.Patch(kit.APIsV1Alpha2+"apiexports/"+o.plural, fmt.Sprintf(`{"spec":{"resources":[{"group":"shared.example.org","name":%[1]q,"schema":"v1.%[1]s.shared.example.org","storage":{"virtual":{"reference":{"apiGroup":"cache.kcp.io","kind":"%[2]sEndpointSlice","name":%[3]q},"identityHash":%[4]q}}}]}}`, o.plural, o.kind, slice, o.identity))
	}
	refer("none")
	k.Eventually("the response reports that the slice does not exist", func() bool {
		code, last := k.TryDo(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(last, o.kind+"EndpointSlice none of the provider does not exist")
	})
	o.untilSlice("APIExportValid", "False APIExportInvalidReference")
	refer(o.plural)
	o.untilSlice("APIExportValid", "True <nil>")
	kit.UntilListed(k, o.objects, "large", "small")
	o.Delete(kit.CachePath + kit.CachedResourcePlural[o.kind] + "/" + o.plural)
	k.Eventually("the response reports the deletion of the cached resource", func() bool {
		code, last := k.TryDo(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(last, "does not exist")
	})
	o.UntilDeleted(kit.CachePath + kit.CachedResourcePlural[o.kind] + "/" + o.plural)
	o.CreateCachedResource(o.kind, o.plural, "")
	kit.UntilListed(k, o.objects, "large", "secret", "small")
	o.Delete(kit.APIsV1Alpha2 + "apiexports/" + o.plural)
	k.Eventually("the response reports the deletion of the export", func() bool {
		code, last := k.TryDo(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(last, "does not exist")
	})
}
