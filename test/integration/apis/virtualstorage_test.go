package apis

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// sliceOf are the names of the endpoint slices of cached resources: their resource, and the field
// that names the cached resource.
var sliceOf = map[string][2]string{
	"CachedResource":        {"cachedresourceendpointslices", "cachedResource"},
	"ClusterCachedResource": {"clustercachedresourceendpointslices", "clusterCachedResource"},
}

// offers is a provider that offers what it has replicated of a resource to others.
type offers struct {
	kit.WorkspaceClient

	kind, plural, objects, identity string
}

// offer makes a provider with a CustomResourceDefinition, a cached resource of one of both names,
// a slice, and an export with virtual storage, all of the name plural.
func offer(k kit.WorkspaceClient, kind, plural, more string) offers {
	k.T.Helper()
	k.DefineClusterScoped(plural, "Flavor")
	k.CreateCachedResource(kind, plural, more)
	now := k.UntilCached(kind, plural, 0, 0)
	identity, _ := kit.Field(now, "status", "identityHash").(string)
	k.Create(kit.CachePath+sliceOf[kind][0], `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"%[1]sEndpointSlice","metadata":{"name":%[2]q},"spec":{"%[3]s":{"name":%[2]q},"export":{"name":%[2]q}}}`, kind, plural, sliceOf[kind][1])
	k.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":%[1]q},"spec":{"resources":[{"group":"shared.example.org","name":%[1]q,"schema":%[2]q,"storage":{"virtual":{"reference":{"apiGroup":"cache.kcp.io","kind":"%[3]sEndpointSlice","name":%[1]q},"identityHash":%[4]q}}}]}}`,
		plural, clusterSchema(k, "v1", plural, "Flavor"), kind, identity)
	k.Eventually("the export has an identity", func() bool {
		return kit.Field(k.Get(kit.APIsV1Alpha2+"apiexports/"+plural), "status", "identityHash") != nil
	})
	return offers{WorkspaceClient: k, kind: kind, plural: plural, objects: "/apis/shared.example.org/v1/" + plural, identity: identity}
}

// hasEndpoints waits until the slice has these endpoints.
func (o offers) hasEndpoints(want ...string) {
	o.T.Helper()
	var found []string
	require.Eventually(o.T, func() bool {
		all, _ := kit.Field(o.slice(), "status", "endpoints").([]any)
		found = nil
		for _, endpoint := range all {
			found = append(found, fmt.Sprint(endpoint.(map[string]any)["url"]))
		}
		return slices.Equal(found, want)
	}, kit.Timeout, kit.Timeout/300, "the slice is to have %v: %v", want, &found)
}

func (o offers) slice() *unstructured.Unstructured {
	return o.Get(kit.CachePath + sliceOf[o.kind][0] + "/" + o.plural)
}

// view is the URL of the slice's view on a shard.
func (o offers) view(shard int) string {
	return o.VirtualWorkspaces(shard) + "/services/replication/" + o.ClusterName + "/" + o.plural
}

// TestCachedSlices: endpoint slices of cached resources, by both of their names, name the shards
// with consumers of the export, as long as all is there that they refer to.
func TestCachedSlices(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for kind, shard := range map[string]int{"CachedResource": 0, "ClusterCachedResource": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			plural := "slices" + fmt.Sprint(shard)
			o := offer(kit.NewWorkspaceClientOn(e, "sliced-"+kit.CachedResourcePlural[kind], shard).ForTest(t), kind, plural, "")
			near, far := kit.NewWorkspaceClientOn(e, "near-"+plural, shard).ForTest(t), kit.NewWorkspaceClientOn(e, "far-"+plural, 1-shard).ForTest(t)
			o.saysOfSlice("APIExportValid", "True <nil>")
			o.saysOfSlice("ResourceValid", "True <nil>")
			o.saysOfSlice("PartitionValid", "True <nil>")
			o.hasEndpoints()
			far.BindPath(http.StatusCreated, plural, o.ClusterName, plural)
			o.hasEndpoints(o.view(1 - shard))
			near.BindPath(http.StatusCreated, plural, o.ClusterName, plural)
			o.hasEndpoints(o.view(0), o.view(1))

			at := kit.CachePath + sliceOf[kind][0] + "/" + plural
			for _, change := range []string{`{"spec":{"%s":{"name":"other"}}}`, `{"spec":{"%.0sexport":{"name":"other"}}}`} {
				o.Do(http.StatusUnprocessableEntity, http.MethodPatch, at, fmt.Sprintf(change, sliceOf[kind][1]))
			}
			o.Do(http.StatusOK, http.MethodPatch, at, `{"spec":{"partition":"none"}}`)
			o.saysOfSlice("PartitionValid", "False PartitionInvalidReference")
			o.hasEndpoints()
			o.Do(http.StatusOK, http.MethodPatch, at, `{"spec":{"partition":""}}`)
			o.hasEndpoints(o.view(0), o.view(1))

			far.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/"+plural, "")
			o.hasEndpoints(o.view(shard))
			o.Do(http.StatusOK, http.MethodDelete, kit.CachePath+kit.CachedResourcePlural[kind]+"/"+plural, "")
			o.saysOfSlice("ResourceValid", "False CachedResourceNotFound")
			o.hasEndpoints()
			o.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apiexports/"+plural, "")
			o.saysOfSlice("APIExportValid", "False APIExportInvalidReference")
		})
	}
}

// saysOfSlice waits until a condition of the slice is as wanted.
func (o offers) saysOfSlice(kind, want string) {
	o.T.Helper()
	var found []string
	require.Eventually(o.T, func() bool {
		found = []string{kit.Condition(o.slice(), kind)}
		return found[0] == want
	}, kit.Timeout, kit.Timeout/300, "%s of the slice is to be %s: %v", kind, want, &found)
}

// object makes one of what is offered.
func (o offers) object(name, more string) {
	o.T.Helper()
	o.Create(o.objects, `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":%q%s},"spec":{"cpus":4}}`, name, more)
}

// untilSees waits until a list has these objects.
func untilSees(k kit.WorkspaceClient, path string, want ...string) []unstructured.Unstructured {
	k.T.Helper()
	var all []unstructured.Unstructured
	var said []string
	require.Eventually(k.T, func() bool {
		code, text := k.TryDo(http.MethodGet, path, "")
		said = []string{fmt.Sprint(code), text}
		list := &unstructured.UnstructuredList{}
		if code != http.StatusOK || list.UnmarshalJSON([]byte(text)) != nil {
			return false
		}
		all = list.Items
		return fmt.Sprint(kit.Names(all)) == fmt.Sprint(want)
	}, kit.Timeout, kit.Timeout/300, "%s is to have %v: %v", path, want, &said)
	return all
}

// TestVirtualStorage: consumers on any shard get, list and watch what their provider has replicated,
// under their own URL, and write nothing.
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
	// A shard without consumers follows what is asked for.
	untilSees(kit.WorkspaceClient{Env: o.Env, Config: o.Shard(1 - shard), PathPrefix: "/services/replication/" + o.ClusterName + "/" + o.plural, ClusterName: "*"}.ForTest(t), o.objects, "large", "small")
	for at, name := range []string{"near-", "far-"} {
		k := kit.NewWorkspaceClientOn(e, name+plural, (shard+at)%2).ForTest(t)
		k.BindPath(http.StatusCreated, plural, o.ClusterName, plural)
		bound := k.UntilBinding(plural, "Ready", "True <nil>")
		require.Nil(t, kit.Field(bound, "status", "boundResources").([]any)[0].(map[string]any)["storageVersions"], "nothing is stored")

		all := untilSees(k, o.objects, "large", "small")
		original := o.Get(o.objects + "/large")
		require.Equal(t, original.GetUID(), all[0].GetUID())
		require.Equal(t, fmt.Sprint(original.Object["spec"]), fmt.Sprint(all[0].Object["spec"]))
		require.Equal(t, map[string]string{"kcp.io/cluster": k.ClusterName, "note": "x"}, all[0].GetAnnotations())
		require.Equal(t, "Flavor", all[0].GetKind())
		require.Equal(t, "large", k.Get(o.objects+"/large").GetName())
		code, _ := k.TryDo(http.MethodGet, o.objects+"/secret", "")
		require.Equal(t, http.StatusNotFound, code)
		untilSees(k, o.objects+"?labelSelector=size%3Ds", "small")
		untilSees(k, o.objects+"?fieldSelector=metadata.name%3Dlarge", "large")
		page := k.Get(o.objects + "?limit=1")
		require.Len(t, kit.Field(page, "items"), 1)
		token, _ := kit.Field(page, "metadata", "continue").(string)
		untilSees(k, o.objects+"?limit=1&continue="+url.QueryEscape(token), "small")

		testVirtualIsReadOnly(t, k, o)
		testVirtualDocuments(t, k, o)
		testVirtualWatch(t, k, o)
		untilSees(k, o.objects, "large", "small")
		testReplicationView(t, k, o, (shard+at)%2)
		testVirtualThroughExport(t, k, o, (shard+at)%2)

		// One logical cluster's binding goes, and takes nothing from anybody.
		k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/"+plural, "")
		k.UntilGone(kit.APIsV1Alpha2+"apibindings", plural)
		k.Eventually("it is not served any more", func() bool {
			code, _ := k.TryDo(http.MethodGet, o.objects, "")
			return code == http.StatusNotFound
		})
		require.NotNil(t, o.Get(o.objects+"/large"))
	}
	testVirtualGoes(t, o, kit.NewWorkspaceClientOn(e, "last-"+plural, 1-shard).ForTest(t))
}

// testVirtualIsReadOnly: each write is answered 405.
func testVirtualIsReadOnly(t *testing.T, k kit.WorkspaceClient, o offers) {
	const body = `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":"x"}}`
	for path, methods := range map[string][]string{o.objects: {http.MethodPost, http.MethodDelete}, o.objects + "/large": {http.MethodPut, http.MethodPatch, http.MethodDelete}} {
		for _, method := range methods {
			code, said := k.TryDo(method, path, body)
			require.Equal(t, http.StatusMethodNotAllowed, code, said)
			require.Contains(t, said, "read-only replicas")
		}
	}
	code, said := k.TryDo(http.MethodGet, o.objects+"/large/status", "")
	require.Equal(t, http.StatusNotFound, code, said)
	untilSees(o.WorkspaceClient, o.objects, "large", "secret", "small")
}

// testVirtualDocuments: discovery tells what can be done, OpenAPI what there is.
func testVirtualDocuments(t *testing.T, k kit.WorkspaceClient, o offers) {
	k.Eventually("discovery has the resource", func() bool {
		code, said := k.TryDo(http.MethodGet, "/apis/shared.example.org/v1", "")
		return code == http.StatusOK && strings.Contains(said, `"verbs":["get","list","watch"]`)
	})
	k.Eventually("OpenAPI has the schema", func() bool {
		code, said := k.TryDo(http.MethodGet, "/openapi/v3/apis/shared.example.org/v1", "")
		return code == http.StatusOK && strings.Contains(said, "Flavor") && strings.Contains(said, o.plural)
	})
	code, table := kit.Do(t, k.Config, kit.Request{Path: "/clusters/" + k.ClusterName + o.objects, Header: http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}})
	require.Equal(t, http.StatusOK, code, string(table))
	require.Contains(t, string(table), `"kind":"Table"`)
	require.Contains(t, string(table), "large")
}

// testVirtualWatch: a watch is told of what changes, and of what the selector of the cached resource
// lets in and out; an informer of client-go follows by it.
func testVirtualWatch(t *testing.T, k kit.WorkspaceClient, o offers) {
	version := k.Get(o.objects).GetResourceVersion()
	w := watchThrough(k, schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: o.plural}, "")
	defer w.Stop()
	o.object("tiny", "")
	added := next(t, w, watch.Added, "tiny")
	require.Equal(t, k.ClusterName, added.GetAnnotations()["kcp.io/cluster"])
	o.Do(http.StatusOK, http.MethodPatch, o.objects+"/tiny", `{"spec":{"cpus":1}}`)
	next(t, w, watch.Modified, "tiny")
	o.Do(http.StatusOK, http.MethodPatch, o.objects+"/tiny", `{"metadata":{"labels":{"hidden":"now"}}}`)
	next(t, w, watch.Deleted, "tiny")
	o.Do(http.StatusOK, http.MethodDelete, o.objects+"/tiny", "")

	// Versions go on from a list, and are nobody else's.
	require.Contains(t, brieflyTold(k, o, "resourceVersion="+version), `"type":"ADDED"`)
	require.Contains(t, brieflyTold(k, o, "resourceVersion="+o.Get(o.objects).GetResourceVersion()), `410`)
	initialEvents(t, k.Config, "/clusters/"+k.ClusterName+o.objects+"?")
}

// brieflyTold returns what a watch of a second is told, of a longer one where a second was too short for anything.
func brieflyTold(k kit.WorkspaceClient, o offers, query string) (events string) {
	k.T.Helper()
	for seconds := 1; events == ""; seconds *= 2 {
		code, told := kit.Do(k.T, k.Config, kit.Request{Path: fmt.Sprintf("/clusters/%s%s?watch=1&timeoutSeconds=%d&%s", k.ClusterName, o.objects, seconds, query)})
		require.Contains(k.T, []int{http.StatusOK, http.StatusGone}, code, "%s", told)
		require.Less(k.T, seconds, 60, "nothing is told")
		events = string(told)
	}
	return events
}

// testReplicationView: who has the verb on the content of the export reads the replicas at the
// endpoints of the slice, and nobody writes there.
func testReplicationView(t *testing.T, k kit.WorkspaceClient, o offers, shard int) {
	all := kit.WorkspaceClient{Env: o.Env, Config: o.Shard(shard), PathPrefix: "/services/replication/" + o.ClusterName + "/" + o.plural, ClusterName: "*"}.ForTest(t)
	one := all
	one.ClusterName = k.ClusterName
	found := untilSees(all, o.objects, "large", "small")
	require.Equal(t, o.ClusterName, found[0].GetAnnotations()["kcp.io/cluster"])
	found = untilSees(one, o.objects, "large", "small")
	require.Equal(t, k.ClusterName, found[0].GetAnnotations()["kcp.io/cluster"])
	require.Equal(t, "large", one.Get(o.objects+"/large").GetName())
	require.Contains(t, fmt.Sprint(all.Get("/apis/shared.example.org/v1").Object), o.plural)

	refused := func(at kit.WorkspaceClient, want int, method, path string) {
		t.Helper()
		code, said := at.TryDo(method, path, `{}`)
		require.Equal(t, want, code, "%s %s: %s", method, path, said)
	}
	require.Equal(t, map[string]any{o.plural: []any{"get", "list", "watch"}}, verbsOf(one, "/apis/shared.example.org/v1"))
	require.Equal(t, map[string]any{o.plural: []any{"list", "watch"}}, verbsOf(all, "/apis/shared.example.org/v1"))
	refused(one, http.StatusMethodNotAllowed, http.MethodPost, o.objects)
	refused(one, http.StatusMethodNotAllowed, http.MethodDelete, o.objects+"/large")
	refused(all, http.StatusMethodNotAllowed, http.MethodDelete, o.objects)
	refused(all, http.StatusMethodNotAllowed, http.MethodGet, o.objects+"/large")
	refused(one, http.StatusNotFound, http.MethodGet, "/api/v1/secrets")
	elsewhere := one
	elsewhere.ClusterName = o.ClusterName
	refused(elsewhere, http.StatusForbidden, http.MethodGet, o.objects)
	nowhere := one
	nowhere.PathPrefix += "x"
	refused(nowhere, http.StatusForbidden, http.MethodGet, o.objects)

	// A user needs the verb on apiexports/content, and to enter the provider's workspace.
	user := one.As("user-1-token")
	refused(user, http.StatusForbidden, http.MethodGet, o.objects)
	if code, _ := o.TryDo(http.MethodGet, kit.RBACPath+"clusterroles/content", ""); code == http.StatusNotFound {
		o.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"content"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":[%q],"verbs":["get","list","watch"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`, o.plural)
		o.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"content"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"content"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	}
	untilSees(user, o.objects, "large", "small")
	refused(user, http.StatusForbidden, http.MethodPost, o.objects)
	o.Do(http.StatusOK, http.MethodDelete, kit.RBACPath+"clusterrolebindings/content", "")
	o.Do(http.StatusOK, http.MethodDelete, kit.RBACPath+"clusterroles/content", "")
	user.Eventually("the right is gone", func() bool {
		code, _ := user.TryDo(http.MethodGet, o.objects, "")
		return code == http.StatusForbidden
	})
}

// testVirtualThroughExport: the virtual workspace of the export serves the replicas too, read-only, and does not
// ask users to bind what is bound.
func testVirtualThroughExport(t *testing.T, k kit.WorkspaceClient, o offers, shard int) {
	all := kit.WorkspaceClient{Env: o.Env, Config: o.Shard(shard), PathPrefix: "/services/apiexport/" + o.ClusterName + "/" + o.plural, ClusterName: "*"}.ForTest(t)
	one := all
	one.ClusterName = k.ClusterName
	untilSees(all, o.objects, "large", "small")
	untilSees(one, o.objects, "large", "small")
	require.Equal(t, "large", one.Get(o.objects+"/large").GetName())
	require.Equal(t, map[string]any{o.plural: []any{"get", "list", "watch"}}, verbsOf(one, "/apis/shared.example.org/v1"))
	require.Equal(t, []any{"get", "list", "watch"}, verbsOf(one, "/apis/apis.kcp.io/v1alpha2")["apibindings"])
	for method, path := range map[string]string{http.MethodPost: o.objects, http.MethodDelete: o.objects + "/large"} {
		code, said := one.TryDo(method, path, `{}`)
		require.Equal(t, http.StatusMethodNotAllowed, code, said)
	}
	code, said := one.TryDo(http.MethodGet, "/api/v1/secrets", "")
	require.Equal(t, http.StatusForbidden, code, said)
	require.NotContains(t, said, "bind it there")
	unbound := one
	unbound.ClusterName = o.ClusterName
	code, said = unbound.TryDo(http.MethodGet, o.objects, "")
	require.Equal(t, http.StatusForbidden, code, said)
	require.Contains(t, said, "bind it there")
}

// testVirtualGoes: with the cached resource go its replicas, and who reads is told why; all of it
// comes back.
func testVirtualGoes(t *testing.T, o offers, k kit.WorkspaceClient) {
	k.BindPath(http.StatusCreated, o.plural, o.ClusterName, o.plural)
	k.UntilBinding(o.plural, "Ready", "True <nil>")
	untilSees(k, o.objects, "large", "small")
	refer := func(slice string) {
		o.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/"+o.plural, fmt.Sprintf(`{"spec":{"resources":[{"group":"shared.example.org","name":%[1]q,"schema":"v1.%[1]s.shared.example.org","storage":{"virtual":{"reference":{"apiGroup":"cache.kcp.io","kind":"%[2]sEndpointSlice","name":%[3]q},"identityHash":%[4]q}}}]}}`, o.plural, o.kind, slice, o.identity))
	}
	refer("none")
	k.Eventually("there is no such slice", func() bool {
		code, said := k.TryDo(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(said, o.kind+"EndpointSlice none of the provider does not exist")
	})
	o.saysOfSlice("APIExportValid", "False APIExportInvalidReference")
	refer(o.plural)
	o.saysOfSlice("APIExportValid", "True <nil>")
	untilSees(k, o.objects, "large", "small")
	o.Do(http.StatusOK, http.MethodDelete, kit.CachePath+kit.CachedResourcePlural[o.kind]+"/"+o.plural, "")
	k.Eventually("who reads is told why there is nothing", func() bool {
		code, said := k.TryDo(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(said, "does not exist")
	})
	o.UntilGone(kit.CachePath+kit.CachedResourcePlural[o.kind], o.plural)
	o.CreateCachedResource(o.kind, o.plural, "")
	untilSees(k, o.objects, "large", "secret", "small")
	o.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apiexports/"+o.plural, "")
	k.Eventually("without the export nothing is offered", func() bool {
		code, said := k.TryDo(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(said, "does not exist")
	})
}
