package apis

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const eventsV1 = "/apis/events.k8s.io/v1/namespaces/default/events"

// listed returns all resources that can be listed in a logical cluster, in every group and
// version, as its discovery tells.
func listedResources(k kit.WorkspaceClient) []schema.GroupVersionResource {
	k.T.Helper()
	versions := []string{"/api/v1"}
	groups, _ := kit.Field(k.Get("/apis"), "groups").([]any)
	for _, group := range groups {
		served, _ := group.(map[string]any)["versions"].([]any)
		for _, version := range served {
			versions = append(versions, "/apis/"+version.(map[string]any)["groupVersion"].(string))
		}
	}
	var all []schema.GroupVersionResource
	for _, path := range versions {
		gv, err := schema.ParseGroupVersion(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"))
		require.NoError(k.T, err)
		text, err := json.Marshal(k.Get(path).Object)
		require.NoError(k.T, err)
		var list metav1.APIResourceList
		require.NoError(k.T, json.Unmarshal(text, &list))
		for i := range list.APIResources {
			if r := &list.APIResources[i]; strings.Contains(fmt.Sprint(r.Verbs), "list") {
				all = append(all, gv.WithResource(r.Name))
			}
		}
	}
	return all
}

// testClaimsOfNone: an export that nobody has bound shows nothing, whatever it claims, in no group
// and no version, and to neither a list nor a watch.
func testClaimsOfNone(t *testing.T, e *kit.Env) {
	// Somebody has objects of every kind, some of them of APIs of others.
	_, identity, consumers := consumersOf(t, e, "of-none", 1)
	k := consumers[0]
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	for gvr, obj := range builtInObjects(t, "of-none") {
		object := obj.(metav1.Object) //nolint:forcetypeassert // all are
		client := encodedClient(k, gvr.GroupVersion(), runtime.ContentTypeJSON)
		_, err := client.Post().NamespaceIfScoped(object.GetNamespace(), object.GetNamespace() != "").Resource(gvr.Resource).Body(obj).Do(t.Context()).Get()
		require.NoError(t, err, gvr)
	}
	root := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t)
	identities := map[string]string{
		"example.org": identity, "tenancy.kcp.io": root.IdentityOf("tenancy.kcp.io"), "topology.kcp.io": root.IdentityOf("topology.kcp.io"),
	}
	spy := kit.NewWorkspaceClient(e, "spy").ForTest(t)
	spy.CreateExport("e", spy.CreateSchema("v1", "gadgets", "size"))
	var all []schema.GroupVersionResource
	var claims []string
	claimed := map[schema.GroupResource]bool{}
	for _, gvr := range listedResources(k) {
		if strings.HasPrefix(gvr.Group, "cache.") || gvr.Group == "example.com" {
			continue // no export has these, so that nobody can claim them
		}
		all = append(all, gvr)
		if gr := gvr.GroupResource(); !claimed[gr] && gvr.Group != eventsv1.GroupName { // these are those of the core group
			claimed[gr] = true
			claims = append(claims, fmt.Sprintf(`{"group":%q,"resource":%q,"verbs":["*"],"identityHash":%q}`, gvr.Group, gvr.Resource, identities[gvr.Group]))
		}
	}
	require.Greater(t, len(claims), len(builtInObjects(t, "x")), "%v", claims)
	spy.ClaimInExport("[" + strings.Join(claims, ",") + "]")
	for shard := range 2 {
		view := onShard(spy, shard).ThroughExport("e", "*")
		view.Eventually("the claims are known", func() bool {
			code, _ := view.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
			return code == http.StatusOK
		})
		for _, gvr := range all {
			t.Run(fmt.Sprintf("%s.%s.%s on shard %d", gvr.Resource, gvr.Version, gvr.Group, shard), func(t *testing.T) { testShowsNothing(t, view.ForTest(t), gvr) })
		}
	}
	in := spy.ThroughExport("e", k.ClusterName)
	for _, gvr := range all {
		code, says := in.TryDo(http.MethodGet, pathOf(gvr), "")
		require.Equal(t, http.StatusForbidden, code, "%s: %s", gvr, says)
	}
}

func pathOf(gvr schema.GroupVersionResource) string {
	if gvr.Group == "" {
		return "/api/" + gvr.Version + "/" + gvr.Resource
	}
	return "/apis/" + gvr.Group + "/" + gvr.Version + "/" + gvr.Resource
}

// testShowsNothing lists and watches a resource. A watch that sends what there is at first tells with a
// bookmark that this was all.
func testShowsNothing(t *testing.T, view kit.WorkspaceClient, gvr schema.GroupVersionResource) {
	for _, query := range []string{"", "?resourceVersion=0", "?limit=1"} {
		require.Empty(t, kit.Field(view.Get(pathOf(gvr)+query), "items"), query)
	}
	config := rest.CopyConfig(view.Config)
	config.Host += view.PathPrefix + "/clusters/*"
	clients, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	initial := true
	w, err := clients.Resource(gvr).Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &initial, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	require.NoError(t, err)
	defer w.Stop()
	select {
	case event := <-w.ResultChan():
		require.Equal(t, watch.Bookmark, event.Type, "%v", event.Object)
	case <-time.After(kit.Timeout):
		require.Fail(t, "no event")
	}
}

// testClaimedEvents: a claim on events is one on those of events.k8s.io, which are the same objects:
// discovery lists both, and the selector holds in both.
func testClaimedEvents(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "claimed-events", 1)
	k := consumers[0]
	in, all := provider.ThroughExport("e", k.ClusterName), provider.ThroughExport("e", "*")
	const (
		coreEvents = "/api/v1/namespaces/default/events"
		core       = `{"metadata":{"name":%q,"namespace":"default","labels":{"for":%q}},"involvedObject":{"kind":"ConfigMap","namespace":"default","name":"x"}}`
		written    = `{"metadata":{"name":%q,"namespace":"default"%s},"regarding":{"kind":"ConfigMap","namespace":"default","name":"x"},"eventTime":"2026-01-01T00:00:00.000000Z","type":"Normal","reason":"Made","action":"Make","reportingController":"example.org/test","reportingInstance":"test"}`
	)
	k.Create(coreEvents, core, "seen", "provider")
	k.Create(coreEvents, core, "hidden", "others")
	for _, claim := range []schema.GroupResource{corev1.Resource("events"), eventsv1.Resource("events")} {
		text := fmt.Sprintf(`{"group":%q,"resource":"events","verbs":["*"]`, claim.Group)
		provider.ClaimInExport(`[` + text + `}]`)
		k.AcceptClaims(`[` + text + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
		for _, view := range []kit.WorkspaceClient{all, in} {
			untilSees(view, "/apis/events.k8s.io/v1/events", "seen")
			untilSees(view, "/api/v1/events", "seen")
			require.Contains(t, fmt.Sprint(view.Get("/apis").Object), "events.k8s.io")
			for _, path := range []string{"/apis/events.k8s.io/v1", "/api/v1"} {
				require.Contains(t, fmt.Sprint(view.Get(path).Object), "name:events")
			}
		}
		for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPut: fmt.Sprintf(written, "hidden", "")} {
			code, says := in.TryDo(method, eventsV1+"/hidden", body)
			require.Equal(t, http.StatusNotFound, code, "%s: %s", method, says)
		}
		w := watchThrough(all, eventsv1.SchemeGroupVersion.WithResource("events"), "")
		name := "made-" + strings.ReplaceAll(claim.String(), ".", "-")
		in.Create(eventsV1, written, name, "")
		require.Equal(t, "provider", next(t, w, watch.Added, name).GetLabels()["for"])
		code, says := in.TryDo(http.MethodPost, eventsV1, fmt.Sprintf(written, "other", `,"labels":{"for":"others"}`))
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "for=provider")
		in.Do(http.StatusOK, http.MethodDelete, eventsV1+"/"+name, "")
		next(t, w, watch.Deleted, name)
	}
	require.Equal(t, "others", k.Get(eventsV1 + "/hidden").GetLabels()["for"])
}
