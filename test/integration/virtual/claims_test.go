package virtual

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testClaimFinalizers checks that a provider can set finalizers of the LogicalClusters of consumers that accept its claim, and nothing
// else. The deletion waits for the finalizer before it deletes the binding.
func testClaimFinalizers(t *testing.T, e *kit.Env) {
	const (
		lc    = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
		claim = `[{"group":"core.kcp.io","resource":"logicalclusters","verbs":["get","list","watch","update","patch"]%s}]`
		merge = "merge-patch+json"
	)
	provider, _, consumers := kit.ConsumersOf(t, e, "finalizers", 1)
	k := consumers[0]
	for _, in := range []kit.WorkspaceClient{provider, k} {
		in.BindRole("all", "cluster-admin", "user-1")
	}
	provider.ClaimInExport(fmt.Sprintf(claim, ""))
	consumer, in := k.As("user-1-token"), provider.As("user-1-token").ThroughExport("e", k.ClusterName)
	set := func(finalizers ...string) string {
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
		require.NoError(t, err)
		return string(text)
	}
	had := k.Get(lc).GetFinalizers()
	held := set(append(slices.Clone(had), "example.org/wait")...)
	in.Eventually("the provider may use the virtual workspace, but not set finalizers", func() bool {
		code, message := kit.WriteAs(in, http.MethodPatch, lc, merge, held)
		require.Equal(t, http.StatusForbidden, code, message)
		_, message = in.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
		var list struct{ Kind string }
		require.NoError(t, json.Unmarshal([]byte(message), &list))
		return list.Kind == "WidgetList"
	})
	k.AcceptClaims(fmt.Sprintf(claim, `,"selector":{"matchAll":true},"state":"Accepted"`))
	in.UntilCode(http.StatusOK, http.MethodGet, lc, "")
	in.Do(http.StatusOK, http.MethodPatch, lc, held)
	require.Contains(t, k.Get(lc).GetFinalizers(), "example.org/wait")
	for _, forbidden := range []struct {
		as   kit.WorkspaceClient
		body string
	}{
		{consumer, set(append(slices.Clone(had), "example.org/wait", "example.org/mine")...)},
		{in, `{"spec":{"directlyDeletable":true}}`},
		{in, set("example.org/wait")},
	} {
		forbidden.as.Do(http.StatusForbidden, http.MethodPatch, lc, forbidden.body)
	}

	root := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t)
	const workspace = kit.TenancyPath + "workspaces/finalizers-0"
	root.Delete(workspace)
	k.Eventually("the deletion waits for the finalizer", func() bool {
		return kit.Condition(k.Get(lc), "WorkspaceContentDeleted") == "False FinalizersRemaining"
	})
	require.NotNil(t, in.Get(lc).GetDeletionTimestamp(), "the provider must observe the deletion")
	require.Nil(t, k.Get(kit.APIsV1Alpha2+"apibindings/e").GetDeletionTimestamp())
	in.Do(http.StatusOK, http.MethodPatch, lc, set(had...))
	root.UntilDeleted(workspace)
}

const eventsV1 = "/apis/events.k8s.io/v1/namespaces/default/events"

// testClaimedEvents checks that a claim on events of either group applies to both groups, which contain the same objects: discovery
// lists both, and the selector applies to both.
func testClaimedEvents(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "claimed-events", 1)
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
		for _, vw := range []kit.WorkspaceClient{all, in} {
			kit.UntilListed(vw, "/apis/events.k8s.io/v1/events", "seen")
			kit.UntilListed(vw, "/api/v1/events", "seen")
			require.Contains(t, fmt.Sprint(vw.Get("/apis").Object), "events.k8s.io")
			for _, path := range []string{"/apis/events.k8s.io/v1", "/api/v1"} {
				require.Contains(t, fmt.Sprint(vw.Get(path).Object), "name:events")
			}
		}
		for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPut: fmt.Sprintf(written, "hidden", "")} {
			in.RequireCode(http.StatusNotFound, method, eventsV1+"/hidden", body)
		}
		w := kit.WatchThrough(all, eventsv1.SchemeGroupVersion.WithResource("events"), "")
		name := "made-" + strings.ReplaceAll(claim.String(), ".", "-")
		in.Create(eventsV1, written, name, "")
		require.Equal(t, "provider", kit.Next(t, w, watch.Added, name).GetLabels()["for"])
		message := in.RequireCode(http.StatusForbidden, http.MethodPost, eventsV1, fmt.Sprintf(written, "other", `,"labels":{"for":"others"}`))
		require.Contains(t, message, "for=provider")
		in.Delete(eventsV1 + "/" + name)
		kit.Next(t, w, watch.Deleted, name)
	}
	require.Equal(t, "others", k.Get(eventsV1 + "/hidden").GetLabels()["for"])
}

// testClaimBetweenListAndWatch accepts claims between the LIST of a client and its WATCH, which is the first for the resource. The
// watch must report the objects, or that the version of the list is too old. Each resource must be tried only once.
func testClaimBetweenListAndWatch(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "claim-watch", 1)
	k := consumers[0]
	resources := []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "secrets"},
		{Version: "v1", Resource: "serviceaccounts"},
		{Version: "v1", Resource: "limitranges"},
		{Version: "v1", Resource: "resourcequotas"},
		{Version: "v1", Resource: "events"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	}
	var claims []string
	for _, r := range resources {
		claims = append(claims, fmt.Sprintf(`{"group":%q,"resource":%q,"verbs":["*"]}`, r.Group, r.Resource))
		k.Create(pathOf(r, "default"), `{"metadata":{"name":"claimed"}%s}`, map[string]string{
			"limitranges": `,"spec":{"limits":[]}`, "events": `,"involvedObject":{"namespace":"default"}`,
		}[r.Resource])
	}
	provider.ClaimInExport("[" + strings.Join(claims, ",") + "]")
	through := provider.ThroughExport("e", "*")
	var accepted []string
	for i, r := range resources {
		var list *unstructured.Unstructured
		through.Eventually("the export claims "+r.Resource, func() bool {
			code, message := through.TryDo(http.MethodGet, pathOf(r, ""), "")
			list = &unstructured.Unstructured{}
			return code == http.StatusOK && list.UnmarshalJSON([]byte(message)) == nil
		})
		require.Empty(t, kit.Field(list, "items"), "no consumer has accepted the claim on %s", r.Resource)
		accepted = append(accepted, strings.TrimSuffix(claims[i], "}")+`,"selector":{"matchAll":true},"state":"Accepted"}`)
		if text := "[" + strings.Join(accepted, ",") + "]"; i%2 == 0 {
			k.AcceptClaims(text)
		} else { // takes effect while the watch starts
			k.Patch(kit.APIsV1Alpha2+"apibindings/e", `{"spec":{"permissionClaims":`+text+`}}`)
		}
		requireAddedOrExpired(t, through, r, kit.Field(list, "metadata", "resourceVersion").(string))
	}
}

// requireAddedOrExpired watches a resource from a version until the object claimed is added, or the version is too old.
func requireAddedOrExpired(t *testing.T, k kit.WorkspaceClient, r schema.GroupVersionResource, version string) {
	t.Helper()
	w, err := kit.DynamicThrough(k).Resource(r).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	require.NoError(t, err)
	defer w.Stop()
	for {
		select {
		case event, open := <-w.ResultChan():
			require.True(t, open, "the watch of %s ended", r.Resource)
			if u, ok := event.Object.(*unstructured.Unstructured); ok && event.Type == watch.Added && u.GetName() == "claimed" {
				return
			}
			if event.Type == watch.Error {
				err := apierrors.FromObject(event.Object)
				require.True(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err), "%v", err)
				return
			}
		case <-time.After(kit.Timeout):
			require.Fail(t, "the watch did not report an event", "%s from %s", r.Resource, version)
		}
	}
}

// pathOf returns the path of a collection, of all namespaces if namespace is empty.
func pathOf(r schema.GroupVersionResource, namespace string) string {
	path := "/apis/" + r.GroupVersion().String()
	if r.Group == "" {
		path = "/api/" + r.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.Resource
}

// testDeletedClaimant checks that claims end with the export, also on open watches.
func testDeletedClaimant(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "claimant", 1)
	k, all := consumers[0], provider.ThroughExport("e", "*")
	k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"a"}}`)
	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	all.UntilShows("/api/v1/configmaps", `"name":"a"`)
	w := kit.WatchThrough(all, configMapsResource, "")
	kit.Next(t, w, watch.Added, "a")
	require.NotEmpty(t, k.Get(kit.ConfigMapsPath+"/a").GetLabels())
	provider.Delete(kit.APIsV1Alpha2 + "apiexports/e")
	kit.Next(t, w, watch.Deleted, "a")
	k.UntilBinding("e", "PermissionClaimsValid", "False InvalidPermissionClaims")
	require.Empty(t, k.Get(kit.ConfigMapsPath+"/a").GetLabels())
}
