package integration

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
)

// sliceOf are the names of the endpoint slices of cached resources: their resource, and the field
// that names the cached resource.
var sliceOf = map[string][2]string{
	"CachedResource":        {"cachedresourceendpointslices", "cachedResource"},
	"ClusterCachedResource": {"clustercachedresourceendpointslices", "clusterCachedResource"},
}

// offers is a provider that offers what it has replicated of a resource to others.
type offers struct {
	apiKinds

	kind, plural, objects, identity string
}

// offer makes a provider with a CustomResourceDefinition, a cached resource of one of both names,
// a slice, and an export with virtual storage, all of the name plural.
func offer(k apiKinds, kind, plural, more string) offers {
	k.t.Helper()
	k.defineCluster(plural, "Flavor")
	k.cached(kind, plural, more)
	now := k.untilCached(kind, plural, 0, 0)
	identity, _ := field(now, "status", "identityHash").(string)
	k.create(cacheV1+sliceOf[kind][0], `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"%[1]sEndpointSlice","metadata":{"name":%[2]q},"spec":{"%[3]s":{"name":%[2]q},"export":{"name":%[2]q}}}`, kind, plural, sliceOf[kind][1])
	k.create(apisV2+"apiexports", `{"metadata":{"name":%[1]q},"spec":{"resources":[{"group":"shared.example.org","name":%[1]q,"schema":%[2]q,"storage":{"virtual":{"reference":{"apiGroup":"cache.kcp.io","kind":"%[3]sEndpointSlice","name":%[1]q},"identityHash":%[4]q}}}]}}`,
		plural, k.clusterSchema("v1", plural, "Flavor"), kind, identity)
	k.eventually("the export has an identity", func() bool {
		return field(k.get(apisV2+"apiexports/"+plural), "status", "identityHash") != nil
	})
	return offers{apiKinds: k, kind: kind, plural: plural, objects: "/apis/shared.example.org/v1/" + plural, identity: identity}
}

// hasEndpoints waits until the slice has these endpoints.
func (o offers) hasEndpoints(want ...string) {
	o.t.Helper()
	var found []string
	require.Eventually(o.t, func() bool {
		all, _ := field(o.slice(), "status", "endpoints").([]any)
		found = nil
		for _, endpoint := range all {
			found = append(found, fmt.Sprint(endpoint.(map[string]any)["url"]))
		}
		return slices.Equal(found, want)
	}, testTimeout, testTimeout/300, "the slice is to have %v: %v", want, &found)
}

func (o offers) slice() *unstructured.Unstructured {
	return o.get(cacheV1 + sliceOf[o.kind][0] + "/" + o.plural)
}

// view is the URL of the slice's view on a shard.
func (o offers) view(shard int) string {
	return o.Shard(shard).Host + "/services/replication/" + o.cluster + "/" + o.plural
}

// TestCachedSlices: endpoint slices of cached resources, by both of their names, name the shards
// with consumers of the export, as long as all is there that they refer to.
func TestCachedSlices(t *testing.T) {
	e := newEnv(t, two.Get(t))
	for kind, shard := range map[string]int{"CachedResource": 0, "ClusterCachedResource": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			plural := "slices" + fmt.Sprint(shard)
			o := offer(newAPIKindsOn(e, "sliced-"+resourceOf[kind], shard).in(t), kind, plural, "")
			near, far := newAPIKindsOn(e, "near-"+plural, shard).in(t), newAPIKindsOn(e, "far-"+plural, 1-shard).in(t)
			o.saysOfSlice("APIExportValid", "True <nil>")
			o.saysOfSlice("ResourceValid", "True <nil>")
			o.saysOfSlice("PartitionValid", "True <nil>")
			o.hasEndpoints()
			far.bindPath(http.StatusCreated, plural, o.cluster, plural)
			o.hasEndpoints(o.view(1 - shard))
			near.bindPath(http.StatusCreated, plural, o.cluster, plural)
			o.hasEndpoints(o.view(0), o.view(1))

			at := cacheV1 + sliceOf[kind][0] + "/" + plural
			for _, change := range []string{`{"spec":{"%s":{"name":"other"}}}`, `{"spec":{"%.0sexport":{"name":"other"}}}`} {
				o.ask(http.StatusUnprocessableEntity, http.MethodPatch, at, fmt.Sprintf(change, sliceOf[kind][1]))
			}
			o.ask(http.StatusOK, http.MethodPatch, at, `{"spec":{"partition":"none"}}`)
			o.saysOfSlice("PartitionValid", "False PartitionInvalidReference")
			o.hasEndpoints()
			o.ask(http.StatusOK, http.MethodPatch, at, `{"spec":{"partition":""}}`)
			o.hasEndpoints(o.view(0), o.view(1))

			far.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/"+plural, "")
			o.hasEndpoints(o.view(shard))
			o.ask(http.StatusOK, http.MethodDelete, cacheV1+resourceOf[kind]+"/"+plural, "")
			o.saysOfSlice("ResourceValid", "False CachedResourceNotFound")
			o.hasEndpoints()
			o.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/"+plural, "")
			o.saysOfSlice("APIExportValid", "False APIExportInvalidReference")
		})
	}
}

// saysOfSlice waits until a condition of the slice is as wanted.
func (o offers) saysOfSlice(kind, want string) {
	o.t.Helper()
	var found []string
	require.Eventually(o.t, func() bool {
		found = []string{condition(o.slice(), kind)}
		return found[0] == want
	}, testTimeout, testTimeout/300, "%s of the slice is to be %s: %v", kind, want, &found)
}

// object makes one of what is offered.
func (o offers) object(name, more string) {
	o.t.Helper()
	o.create(o.objects, `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":%q%s},"spec":{"cpus":4}}`, name, more)
}

// untilSees waits until a list has these objects.
func (k apiKinds) untilSees(path string, want ...string) []unstructured.Unstructured {
	k.t.Helper()
	var all []unstructured.Unstructured
	var said []string
	require.Eventually(k.t, func() bool {
		code, text := k.status(http.MethodGet, path, "")
		said = []string{fmt.Sprint(code), text}
		list := &unstructured.UnstructuredList{}
		if code != http.StatusOK || list.UnmarshalJSON([]byte(text)) != nil {
			return false
		}
		all = list.Items
		return fmt.Sprint(names(all)) == fmt.Sprint(want)
	}, testTimeout, testTimeout/300, "%s is to have %v: %v", path, want, &said)
	return all
}

// TestVirtualStorage: consumers on any shard get, list and watch what their provider has replicated,
// under their own URL, and write nothing.
func TestVirtualStorage(t *testing.T) {
	e := newEnv(t, two.Get(t))
	for kind, shard := range map[string]int{"CachedResource": 0, "ClusterCachedResource": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			testVirtualStorage(t, e, kind, shard)
		})
	}
}

func testVirtualStorage(t *testing.T, e *env, kind string, shard int) {
	plural := "virtual" + fmt.Sprint(shard)
	o := offer(newAPIKindsOn(e, "virtual-"+resourceOf[kind], shard).in(t), kind, plural, `,"labelSelector":{"matchExpressions":[{"key":"hidden","operator":"DoesNotExist"}]}`)
	o.object("large", `,"labels":{"size":"l"},"annotations":{"note":"x"}`)
	o.object("secret", `,"labels":{"hidden":"yes"}`)
	o.object("small", `,"labels":{"size":"s"}`)
	// A shard without consumers follows what is asked for.
	apiKinds{env: o.env, config: o.Shard(1 - shard), view: "/services/replication/" + o.cluster + "/" + o.plural, cluster: "*"}.in(t).untilSees(o.objects, "large", "small")
	for at, name := range []string{"near-", "far-"} {
		k := newAPIKindsOn(e, name+plural, (shard+at)%2).in(t)
		k.bindPath(http.StatusCreated, plural, o.cluster, plural)
		bound := k.until(plural, "Ready", "True <nil>")
		require.Nil(t, field(bound, "status", "boundResources").([]any)[0].(map[string]any)["storageVersions"], "nothing is stored")

		all := k.untilSees(o.objects, "large", "small")
		original := o.get(o.objects + "/large")
		require.Equal(t, original.GetUID(), all[0].GetUID())
		require.Equal(t, fmt.Sprint(original.Object["spec"]), fmt.Sprint(all[0].Object["spec"]))
		require.Equal(t, map[string]string{"kcp.io/cluster": k.cluster, "note": "x"}, all[0].GetAnnotations())
		require.Equal(t, "Flavor", all[0].GetKind())
		require.Equal(t, "large", k.get(o.objects+"/large").GetName())
		code, _ := k.status(http.MethodGet, o.objects+"/secret", "")
		require.Equal(t, http.StatusNotFound, code)
		k.untilSees(o.objects+"?labelSelector=size%3Ds", "small")
		k.untilSees(o.objects+"?fieldSelector=metadata.name%3Dlarge", "large")
		page := k.get(o.objects + "?limit=1")
		require.Len(t, field(page, "items"), 1)
		token, _ := field(page, "metadata", "continue").(string)
		k.untilSees(o.objects+"?limit=1&continue="+url.QueryEscape(token), "small")

		testVirtualIsReadOnly(t, k, o)
		testVirtualDocuments(t, k, o)
		testVirtualWatch(t, k, o)
		k.untilSees(o.objects, "large", "small")
		testReplicationView(t, k, o, (shard+at)%2)

		// One logical cluster's binding goes, and takes nothing from anybody.
		k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/"+plural, "")
		k.gone(apisV2+"apibindings", plural)
		k.eventually("it is not served any more", func() bool {
			code, _ := k.status(http.MethodGet, o.objects, "")
			return code == http.StatusNotFound
		})
		require.NotNil(t, o.get(o.objects+"/large"))
	}
	testVirtualGoes(t, o, newAPIKindsOn(e, "last-"+plural, 1-shard).in(t))
}

// testVirtualIsReadOnly: each write is answered 405.
func testVirtualIsReadOnly(t *testing.T, k apiKinds, o offers) {
	const body = `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":"x"}}`
	for path, methods := range map[string][]string{o.objects: {http.MethodPost, http.MethodDelete}, o.objects + "/large": {http.MethodPut, http.MethodPatch, http.MethodDelete}} {
		for _, method := range methods {
			code, said := k.status(method, path, body)
			require.Equal(t, http.StatusMethodNotAllowed, code, said)
			require.Contains(t, said, "to be read only")
		}
	}
	code, said := k.status(http.MethodGet, o.objects+"/large/status", "")
	require.Equal(t, http.StatusNotFound, code, said)
	o.untilSees(o.objects, "large", "secret", "small")
}

// testVirtualDocuments: discovery tells what can be done, OpenAPI what there is.
func testVirtualDocuments(t *testing.T, k apiKinds, o offers) {
	k.eventually("discovery has the resource", func() bool {
		code, said := k.status(http.MethodGet, "/apis/shared.example.org/v1", "")
		return code == http.StatusOK && strings.Contains(said, `"verbs":["get","list","watch"]`)
	})
	k.eventually("OpenAPI has the schema", func() bool {
		code, said := k.status(http.MethodGet, "/openapi/v3/apis/shared.example.org/v1", "")
		return code == http.StatusOK && strings.Contains(said, "Flavor") && strings.Contains(said, o.plural)
	})
	code, table := do(t, k.config, call{path: "/clusters/" + k.cluster + o.objects, header: http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}})
	require.Equal(t, http.StatusOK, code, string(table))
	require.Contains(t, string(table), `"kind":"Table"`)
	require.Contains(t, string(table), "large")
}

// testVirtualWatch: a watch is told of what changes, and of what the selector of the cached resource
// lets in and out; an informer of client-go follows by it.
func testVirtualWatch(t *testing.T, k apiKinds, o offers) {
	version := k.get(o.objects).GetResourceVersion()
	w := k.follow(schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: o.plural}, "")
	defer w.Stop()
	o.object("tiny", "")
	added := next(t, w, watch.Added, "tiny")
	require.Equal(t, k.cluster, added.GetAnnotations()["kcp.io/cluster"])
	o.ask(http.StatusOK, http.MethodPatch, o.objects+"/tiny", `{"spec":{"cpus":1}}`)
	next(t, w, watch.Modified, "tiny")
	o.ask(http.StatusOK, http.MethodPatch, o.objects+"/tiny", `{"metadata":{"labels":{"hidden":"now"}}}`)
	next(t, w, watch.Deleted, "tiny")
	o.ask(http.StatusOK, http.MethodDelete, o.objects+"/tiny", "")

	// Versions go on from a list, and are nobody else's.
	require.Contains(t, k.brieflyTold(o, "resourceVersion="+version), `"type":"ADDED"`)
	require.Contains(t, k.brieflyTold(o, "resourceVersion="+o.get(o.objects).GetResourceVersion()), `410`)
	initialEvents(t, k.config, "/clusters/"+k.cluster+o.objects+"?")
}

// brieflyTold returns what a watch of a second is told, of a longer one where a second was too short for anything.
func (k apiKinds) brieflyTold(o offers, query string) (events string) {
	k.t.Helper()
	for seconds := 1; events == ""; seconds *= 2 {
		code, told := do(k.t, k.config, call{path: fmt.Sprintf("/clusters/%s%s?watch=1&timeoutSeconds=%d&%s", k.cluster, o.objects, seconds, query)})
		require.Contains(k.t, []int{http.StatusOK, http.StatusGone}, code, "%s", told)
		require.Less(k.t, seconds, 60, "nothing is told")
		events = string(told)
	}
	return events
}

// testReplicationView: who has the verb on the content of the export reads the replicas at the
// endpoints of the slice, and nobody writes there.
func testReplicationView(t *testing.T, k apiKinds, o offers, shard int) {
	all := apiKinds{env: o.env, config: o.Shard(shard), view: "/services/replication/" + o.cluster + "/" + o.plural, cluster: "*"}.in(t)
	one := all
	one.cluster = k.cluster
	found := all.untilSees(o.objects, "large", "small")
	require.Equal(t, o.cluster, found[0].GetAnnotations()["kcp.io/cluster"])
	found = one.untilSees(o.objects, "large", "small")
	require.Equal(t, k.cluster, found[0].GetAnnotations()["kcp.io/cluster"])
	require.Equal(t, "large", one.get(o.objects+"/large").GetName())
	require.Contains(t, fmt.Sprint(all.get("/apis/shared.example.org/v1").Object), o.plural)

	refused := func(at apiKinds, want int, method, path string) {
		t.Helper()
		code, said := at.status(method, path, `{}`)
		require.Equal(t, want, code, "%s %s: %s", method, path, said)
	}
	refused(one, http.StatusForbidden, http.MethodPost, o.objects)
	refused(one, http.StatusForbidden, http.MethodDelete, o.objects+"/large")
	refused(all, http.StatusForbidden, http.MethodDelete, o.objects)
	refused(all, http.StatusMethodNotAllowed, http.MethodGet, o.objects+"/large")
	refused(one, http.StatusNotFound, http.MethodGet, "/api/v1/secrets")
	elsewhere := one
	elsewhere.cluster = o.cluster
	refused(elsewhere, http.StatusForbidden, http.MethodGet, o.objects)
	nowhere := one
	nowhere.view += "x"
	refused(nowhere, http.StatusForbidden, http.MethodGet, o.objects)

	// A user needs the verb on apiexports/content, and to enter the provider's workspace.
	user := one.as("user-1-token")
	refused(user, http.StatusForbidden, http.MethodGet, o.objects)
	if code, _ := o.status(http.MethodGet, rbacV1+"clusterroles/content", ""); code == http.StatusNotFound {
		o.create(rbacV1+"clusterroles", `{"metadata":{"name":"content"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":[%q],"verbs":["get","list","watch"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`, o.plural)
		o.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"content"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"content"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	}
	user.untilSees(o.objects, "large", "small")
	refused(user, http.StatusForbidden, http.MethodPost, o.objects)
	o.ask(http.StatusOK, http.MethodDelete, rbacV1+"clusterrolebindings/content", "")
	o.ask(http.StatusOK, http.MethodDelete, rbacV1+"clusterroles/content", "")
	user.eventually("the right is gone", func() bool {
		code, _ := user.status(http.MethodGet, o.objects, "")
		return code == http.StatusForbidden
	})
}

// testVirtualGoes: with the cached resource go its replicas, and who reads is told why; all of it
// comes back.
func testVirtualGoes(t *testing.T, o offers, k apiKinds) {
	k.bindPath(http.StatusCreated, o.plural, o.cluster, o.plural)
	k.until(o.plural, "Ready", "True <nil>")
	k.untilSees(o.objects, "large", "small")
	refer := func(slice string) {
		o.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/"+o.plural, fmt.Sprintf(`{"spec":{"resources":[{"group":"shared.example.org","name":%[1]q,"schema":"v1.%[1]s.shared.example.org","storage":{"virtual":{"reference":{"apiGroup":"cache.kcp.io","kind":"%[2]sEndpointSlice","name":%[3]q},"identityHash":%[4]q}}}]}}`, o.plural, o.kind, slice, o.identity))
	}
	refer("none")
	k.eventually("there is no such slice", func() bool {
		code, said := k.status(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(said, o.kind+"EndpointSlice none of the provider does not exist")
	})
	o.saysOfSlice("APIExportValid", "False APIExportInvalidReference")
	refer(o.plural)
	o.saysOfSlice("APIExportValid", "True <nil>")
	k.untilSees(o.objects, "large", "small")
	o.ask(http.StatusOK, http.MethodDelete, cacheV1+resourceOf[o.kind]+"/"+o.plural, "")
	k.eventually("who reads is told why there is nothing", func() bool {
		code, said := k.status(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(said, "does not exist")
	})
	o.gone(cacheV1+resourceOf[o.kind], o.plural)
	o.cached(o.kind, o.plural, "")
	k.untilSees(o.objects, "large", "secret", "small")
	o.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/"+o.plural, "")
	k.eventually("without the export nothing is offered", func() bool {
		code, said := k.status(http.MethodGet, o.objects, "")
		return code == http.StatusServiceUnavailable && strings.Contains(said, "does not exist")
	})
}
