package virtual

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

var schemasResource = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiresourceschemas"}

// boundSchemas returns a client of the virtual workspace with the schemas that a logical cluster has bound.
func boundSchemas(k kit.WorkspaceClient, cluster string) kit.WorkspaceClient {
	k.PathPrefix, k.ClusterName = "/services/apiresourceschema/"+k.ClusterName, cluster
	return k
}

// TestSchemaVirtualWorkspace checks that a consumer reads the schemas of the APIs that it has bound, also those of a provider on
// another shard, and no others.
func TestSchemaVirtualWorkspace(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("content", func(t *testing.T) { testSchemaContent(t, e) })
	t.Run("informer", func(t *testing.T) { testSchemaInformer(t, e) })
	t.Run("authorization", func(t *testing.T) { testSchemaAuthorization(t, e) })
}

func testSchemaContent(t *testing.T, e *kit.Env) {
	far := kit.NewWorkspaceClientOn(e, "schemas-far", 1).ForTest(t)
	far.CreateExport("e", far.CreateSchema("v1", "widgets", "size"))
	original := far.Get(kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org")
	k, other := kit.NewWorkspaceClient(e, "schemas-consumer").ForTest(t), kit.NewWorkspaceClient(e, "schemas-other").ForTest(t)
	other.CreateExport("o", other.CreateSchema("v1", "others", "size"))
	other.BindReady("o", other, "o")
	all, one := boundSchemas(k, "*"), boundSchemas(k, k.ClusterName)
	require.Empty(t, tenants(all.Get(kit.APIsV1Alpha1+"apiresourceschemas")))
	k.BindReady("e", far, "e")

	for _, vw := range []kit.WorkspaceClient{all, one} {
		vw.Eventually("the virtual workspace contains the schema", func() bool { return len(tenants(vw.Get(kit.APIsV1Alpha1+"apiresourceschemas"))) == 1 })
		list := vw.Get(kit.APIsV1Alpha1 + "apiresourceschemas")
		require.Len(t, tenants(list), 1)
		require.Contains(t, fmt.Sprint(kit.Field(list, "items")), ".workspaces.tenancy.kcp.io", "APIs that the type universal binds")
		shown := vw.Get(kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org")
		require.Equal(t, "APIResourceSchema", shown.GetKind())
		require.Equal(t, original.GetUID(), shown.GetUID())
		require.Equal(t, far.ClusterName, shown.GetAnnotations()["kcp.io/cluster"])
		require.Equal(t, kit.Field(original, "spec"), kit.Field(shown, "spec"))
		require.Equal(t, tenants(list)[0], shown.Object)
		named := vw.Get(kit.APIsV1Alpha1 + "apiresourceschemas?fieldSelector=metadata.name%3Dv1.widgets.example.org")
		require.Len(t, kit.Field(named, "items"), 1)
		require.Empty(t, kit.Field(vw.Get(kit.APIsV1Alpha1+"apiresourceschemas?fieldSelector=metadata.name%3Dv1.others.example.org"), "items"))
		require.NotEmpty(t, kit.Field(vw.Get(kit.APIsV1Alpha1+"apiresourceschemas?limit=1&resourceVersion=0"), "items"))
		var parts []any
		for _, selector := range []string{kit.ShardRange("uid", 0, 2), kit.ShardRange("uid", 2, 4)} {
			part := vw.Get(kit.APIsV1Alpha1 + "apiresourceschemas?shardSelector=" + url.QueryEscape(selector))
			require.Equal(t, selector, kit.Field(part, "metadata", "shardInfo", "selector"))
			items, _ := kit.Field(part, "items").([]any)
			parts = append(parts, items...)
		}
		require.ElementsMatch(t, kit.Field(list, "items"), parts)

		// Discovery and OpenAPI contain nothing else.
		groups := fmt.Sprint(vw.Get("/apis").Object)
		require.Contains(t, groups, "apis.kcp.io")
		require.NotContains(t, groups, "tenancy.kcp.io")
		resources := fmt.Sprint(vw.Get("/apis/apis.kcp.io/v1alpha1").Object)
		require.Contains(t, resources, "apiresourceschemas")
		require.NotContains(t, resources, "apibindings")
		require.Equal(t, map[string]any{"apiresourceschemas": []any{"get", "list", "watch"}}, verbsOf(vw, "/apis/apis.kcp.io/v1alpha1"))
		paths := kit.Field(vw.Get("/openapi/v3"), "paths").(map[string]any)
		require.Equal(t, []string{"api", "apis", "apis/apis.kcp.io", "apis/apis.kcp.io/v1alpha1", "version"}, slices.Sorted(maps.Keys(paths)))

		for _, path := range []string{
			kit.APIsV1Alpha1 + "apiresourceschemas/v1.others.example.org", kit.APIsV1Alpha1 + "apiresourceschemas/" + string(original.GetUID()), kit.APIsV1Alpha1 + "apibindings", "/api/v1/configmaps",
			kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org/status", "/apis/internal.apis.shardplane.io/v1alpha1/boundschemas", "/readyz",
		} {
			vw.RequireCode(http.StatusNotFound, http.MethodGet, path, "")
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			vw.RequireCode(http.StatusMethodNotAllowed, method, kit.APIsV1Alpha1+"apiresourceschemas/v1.widgets.example.org", "{}")
		}
	}
	boundSchemas(k, other.ClusterName).RequireCode(http.StatusNotFound, http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")

	// Tables and YAML for kubectl.
	message := all.Kubectl("get", "apiresourceschemas", "-o", "wide")
	require.Contains(t, message, "v1.widgets.example.org")
	message = one.Kubectl("get", "apiresourceschemas", "v1.widgets.example.org", "-o", "yaml")
	require.Contains(t, message, "uid: "+string(original.GetUID()))

	// The original may be deleted.
	far.Delete(kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org")
	require.Len(t, tenants(all.Get(kit.APIsV1Alpha1+"apiresourceschemas")), 1)
}

// tenants returns the schemas in a list that are not system APIs.
func tenants(list *unstructured.Unstructured) []any {
	items, _ := kit.Field(list, "items").([]any)
	return slices.DeleteFunc(slices.Clone(items), func(item any) bool {
		return !strings.HasSuffix(fmt.Sprint(item.(map[string]any)["metadata"].(map[string]any)["name"]), ".example.org")
	})
}

// observedSchemas contains the schemas in an informer.
type observedSchemas struct {
	mu    sync.Mutex
	uids  map[string]string
	ended int
}

func (s *observedSchemas) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.uids))
}

// testSchemaInformer checks that an informer of client-go follows bindings that are created, changed and deleted, and can resume.
func testSchemaInformer(t *testing.T, e *kit.Env) {
	provider := kit.NewWorkspaceClient(e, "schemas-provider").ForTest(t)
	k := kit.NewWorkspaceClient(e, "schemas-informed").ForTest(t)
	config := rest.CopyConfig(k.Config)
	config.Host += "/services/apiresourceschema/" + k.ClusterName + "/clusters/*"
	clients, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	in := clients.Resource(schemasResource)
	var lists int
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			lists++
			return in.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return in.Watch(ctx, o) },
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	now := &observedSchemas{uids: map[string]string{}}
	note := func(obj any) {
		u := obj.(*unstructured.Unstructured)
		now.mu.Lock()
		defer now.mu.Unlock()
		if strings.HasSuffix(u.GetName(), ".example.org") { // not a system API
			now.uids[u.GetName()] = string(u.GetUID())
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: note, UpdateFunc: func(_, obj any) { note(obj) },
		DeleteFunc: func(obj any) {
			now.mu.Lock()
			defer now.mu.Unlock()
			now.ended++
			delete(now.uids, obj.(*unstructured.Unstructured).GetName())
		},
	})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); informer.RunWithContext(t.Context()) }()
	t.Cleanup(func() { <-done })
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
	untilSchemas := func(names ...string) {
		t.Helper()
		k.Eventually(strings.Join(names, ", "), func() bool { return slices.Equal(names, now.names()) })
	}
	untilSchemas()

	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.Bind("e", provider, "e")
	untilSchemas("v1.widgets.example.org")
	provider.CreateExport("f", provider.CreateSchema("v1", "gadgets", "size"))
	k.Bind("f", provider, "f")
	untilSchemas("v1.gadgets.example.org", "v1.widgets.example.org")
	// Another schema for a bound resource.
	second := provider.CreateSchema("v2", "widgets", "size")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"`+second+`","storage":{"crd":{}}}]}}`)
	untilSchemas("v1.gadgets.example.org", "v2.widgets.example.org")

	// A resumed watch receives the missed events.
	before := harness.List(t, in, metav1.ListOptions{})
	k.Delete(kit.APIsV1Alpha2 + "apibindings/f")
	untilSchemas("v2.widgets.example.org")
	w, err := in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.GetResourceVersion(), AllowWatchBookmarks: true})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	kit.Next(t, w, watch.Deleted, "v1.gadgets.example.org")
	initial := true
	streamed, err := in.Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &initial, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	require.NoError(t, err)
	t.Cleanup(streamed.Stop)
	kit.Next(t, streamed, watch.Added, "v2.widgets.example.org")
	bookmark := kit.Next(t, streamed, watch.Bookmark, "")
	require.Equal(t, "true", bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey])
	k.Bind("f", provider, "f")
	for _, open := range []watch.Interface{w, streamed} {
		kit.Next(t, open, watch.Added, "v1.gadgets.example.org")
	}
	untilSchemas("v1.gadgets.example.org", "v2.widgets.example.org")
	require.LessOrEqual(t, lists, 1, "the informer must not list again")
}

// testSchemaAuthorization checks that users can read the schemas if they may get apibindings, and that others get the same response for
// anything.
func testSchemaAuthorization(t *testing.T, e *kit.Env) {
	k := kit.NewWorkspaceClient(e, "schemas-rights").ForTest(t)
	far := kit.NewWorkspaceClientOn(e, "schemas-elsewhere", 1).ForTest(t)
	user := k.As("user-1-token")
	reasons := map[string]bool{}
	for _, cluster := range []string{k.ClusterName, "nowhere", far.ClusterName} {
		inCluster := user.In(cluster)
		for _, vw := range []kit.WorkspaceClient{boundSchemas(inCluster, "*"), boundSchemas(inCluster, cluster), boundSchemas(inCluster, "other")} {
			for _, path := range []string{kit.APIsV1Alpha1 + "apiresourceschemas", "/apis", kit.APIsV1Alpha1 + "apibindings"} {
				message := vw.RequireCode(http.StatusForbidden, http.MethodGet, path, "")
				_, reason, _ := strings.Cut(message, "cannot ")
				_, reason, _ = strings.Cut(reason, ": ")
				reason, _, _ = strings.Cut(reason, `","reason"`)
				reasons[reason] = true
			}
			vw.RequireCode(http.StatusForbidden, http.MethodPost, kit.APIsV1Alpha1+"apiresourceschemas", "{}")
		}
	}
	require.Len(t, reasons, 1, "the responses to unauthorized users must not differ: %v", reasons)
	k.Allow("get-bindings", "user-1", `{"apiGroups":["apis.kcp.io"],"resources":["apibindings"],"verbs":["get"]},{"nonResourceURLs":["/"],"verbs":["access"]}`)
	boundSchemas(user, "*").UntilCode(http.StatusOK, http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")
	user.RequireCode(http.StatusForbidden, http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")
	// Workspace paths are resolved, and malformed paths must be rejected.
	list := harness.List(t, kinds.APIBindings.In(k.ShardClients["root"].Cluster(kit.Path("root:schemas-rights"))), metav1.ListOptions{})
	require.Len(t, list.Items, 2)
	byPath := user.In("root:schemas-rights")
	boundSchemas(byPath, "root:schemas-rights").RequireCode(http.StatusOK, http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")
	for _, malformed := range []string{"/services/apiresourceschema/" + k.ClusterName, "/services/apiresourceschema/*/clusters/*/apis", "/services/apiresourceschema/" + k.ClusterName + "/clusters/" + k.ClusterName + "%2fx/apis"} {
		code, response := kit.Do(t, k.Config, kit.Request{Method: http.MethodGet, Path: malformed})
		require.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, code, "%s", response)
	}
}
