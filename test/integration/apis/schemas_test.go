package apis

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
	"github.com/shardplane/shardplane/test/integration/kit"
)

var schemasResource = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiresourceschemas"}

// schemas is what a logical cluster sees of the schemas that it has bound.
func schemaNames(k kit.WorkspaceClient, cluster string) kit.WorkspaceClient {
	k.PathPrefix, k.ClusterName = "/services/apiresourceschema/"+k.ClusterName, cluster
	return k
}

// TestSchemaView: a consumer sees the schemas of the APIs that it has bound, also those of
// a provider on another shard, and nobody else's.
func TestSchemaView(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("content", func(t *testing.T) { testSchemaView(t, e) })
	t.Run("informer", func(t *testing.T) { testSchemaInformer(t, e) })
	t.Run("rights", func(t *testing.T) { testSchemaViewRights(t, e) })
}

func testSchemaView(t *testing.T, e *kit.Env) {
	far := kit.NewWorkspaceClientOn(e, "schemas-far", 1).ForTest(t)
	far.CreateExport("e", far.CreateSchema("v1", "widgets", "size"))
	original := far.Get(kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org")
	k, other := kit.NewWorkspaceClient(e, "schemas-consumer").ForTest(t), kit.NewWorkspaceClient(e, "schemas-other").ForTest(t)
	other.CreateExport("o", other.CreateSchema("v1", "others", "size"))
	other.Bind("o", other, "o")
	other.UntilBinding("o", "Ready", "True <nil>")
	all, one := schemaNames(k, "*"), schemaNames(k, k.ClusterName)
	require.Empty(t, tenants(all.Get(kit.APIsV1Alpha1+"apiresourceschemas")))
	k.Bind("e", far, "e")
	k.UntilBinding("e", "Ready", "True <nil>")

	for _, view := range []kit.WorkspaceClient{all, one} {
		view.Eventually("the view has heard of it", func() bool { return len(tenants(view.Get(kit.APIsV1Alpha1+"apiresourceschemas"))) == 1 })
		list := view.Get(kit.APIsV1Alpha1 + "apiresourceschemas")
		require.Len(t, tenants(list), 1)
		require.Contains(t, fmt.Sprint(kit.Field(list, "items")), ".workspaces.tenancy.kcp.io", "what universal binds")
		shown := view.Get(kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org")
		require.Equal(t, "APIResourceSchema", shown.GetKind())
		require.Equal(t, original.GetUID(), shown.GetUID())
		require.Equal(t, far.ClusterName, shown.GetAnnotations()["kcp.io/cluster"])
		require.Equal(t, kit.Field(original, "spec"), kit.Field(shown, "spec"))
		require.Equal(t, tenants(list)[0], shown.Object)
		named := view.Get(kit.APIsV1Alpha1 + "apiresourceschemas?fieldSelector=metadata.name%3Dv1.widgets.example.org")
		require.Len(t, kit.Field(named, "items"), 1)
		require.Empty(t, kit.Field(view.Get(kit.APIsV1Alpha1+"apiresourceschemas?fieldSelector=metadata.name%3Dv1.others.example.org"), "items"))
		require.NotEmpty(t, kit.Field(view.Get(kit.APIsV1Alpha1+"apiresourceschemas?limit=1&resourceVersion=0"), "items"))
		var parts []any
		for _, selector := range []string{kit.ShardRange("uid", 0, 2), kit.ShardRange("uid", 2, 4)} {
			part := view.Get(kit.APIsV1Alpha1 + "apiresourceschemas?shardSelector=" + url.QueryEscape(selector))
			require.Equal(t, selector, kit.Field(part, "metadata", "shardInfo", "selector"))
			items, _ := kit.Field(part, "items").([]any)
			parts = append(parts, items...)
		}
		require.ElementsMatch(t, kit.Field(list, "items"), parts)

		// Documents tell of that, and of nothing else.
		groups := fmt.Sprint(view.Get("/apis").Object)
		require.Contains(t, groups, "apis.kcp.io")
		require.NotContains(t, groups, "tenancy.kcp.io")
		resources := fmt.Sprint(view.Get("/apis/apis.kcp.io/v1alpha1").Object)
		require.Contains(t, resources, "apiresourceschemas")
		require.NotContains(t, resources, "apibindings")
		require.Equal(t, map[string]any{"apiresourceschemas": []any{"get", "list", "watch"}}, verbsOf(view, "/apis/apis.kcp.io/v1alpha1"))
		paths := kit.Field(view.Get("/openapi/v3"), "paths").(map[string]any)
		require.Equal(t, []string{"api", "apis", "apis/apis.kcp.io", "apis/apis.kcp.io/v1alpha1", "version"}, slices.Sorted(maps.Keys(paths)))

		for _, path := range []string{
			kit.APIsV1Alpha1 + "apiresourceschemas/v1.others.example.org", kit.APIsV1Alpha1 + "apiresourceschemas/" + string(original.GetUID()), kit.APIsV1Alpha1 + "apibindings", "/api/v1/configmaps",
			kit.APIsV1Alpha1 + "apiresourceschemas/v1.widgets.example.org/status", "/apis/internal.apis.shardplane.io/v1alpha1/boundschemas", "/readyz",
		} {
			code, says := view.TryDo(http.MethodGet, path, "")
			require.Equal(t, http.StatusNotFound, code, "%s: %s", path, says)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			code, says := view.TryDo(method, kit.APIsV1Alpha1+"apiresourceschemas/v1.widgets.example.org", "{}")
			require.Equal(t, http.StatusMethodNotAllowed, code, says)
		}
	}
	code, says := schemaNames(k, other.ClusterName).TryDo(http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")
	require.Equal(t, http.StatusNotFound, code, says)

	// What kubectl shows, tables and all.
	says = all.Kubectl("get", "apiresourceschemas", "-o", "wide")
	require.Contains(t, says, "v1.widgets.example.org")
	says = one.Kubectl("get", "apiresourceschemas", "v1.widgets.example.org", "-o", "yaml")
	require.Contains(t, says, "uid: "+string(original.GetUID()))

	// The originals may go.
	far.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha1+"apiresourceschemas/v1.widgets.example.org", "")
	require.Len(t, tenants(all.Get(kit.APIsV1Alpha1+"apiresourceschemas")), 1)
}

// tenants returns those of a list that are not the system's.
func tenants(list *unstructured.Unstructured) []any {
	items, _ := kit.Field(list, "items").([]any)
	return slices.DeleteFunc(slices.Clone(items), func(item any) bool {
		return !strings.HasSuffix(fmt.Sprint(item.(map[string]any)["metadata"].(map[string]any)["name"]), ".example.org")
	})
}

// seen follows what an informer says there is.
type seen struct {
	mu    sync.Mutex
	uids  map[string]string
	ended int
}

func (s *seen) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.uids))
}

// testSchemaInformer: an informer of client-go follows the view while bindings come, change
// and go, and resumes.
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
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return in.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	now := &seen{uids: map[string]string{}}
	note := func(obj any) {
		u := obj.(*unstructured.Unstructured)
		now.mu.Lock()
		defer now.mu.Unlock()
		if strings.HasSuffix(u.GetName(), ".example.org") { // not the system's
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
	sees := func(names ...string) {
		t.Helper()
		k.Eventually(strings.Join(names, ", "), func() bool { return slices.Equal(names, now.names()) })
	}
	sees()

	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.Bind("e", provider, "e")
	sees("v1.widgets.example.org")
	provider.CreateExport("f", provider.CreateSchema("v1", "gadgets", "size"))
	k.Bind("f", provider, "f")
	sees("v1.gadgets.example.org", "v1.widgets.example.org")
	// Another schema for what is bound.
	second := provider.CreateSchema("v2", "widgets", "size")
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"`+second+`","storage":{"crd":{}}}]}}`)
	sees("v1.gadgets.example.org", "v2.widgets.example.org")

	// A watch that resumes is told what it has missed, and so far as it is.
	before, err := in.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/f", "")
	sees("v2.widgets.example.org")
	w, err := in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.GetResourceVersion(), AllowWatchBookmarks: true})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	next(t, w, watch.Deleted, "v1.gadgets.example.org")
	initial := true
	streamed, err := in.Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &initial, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	require.NoError(t, err)
	t.Cleanup(streamed.Stop)
	next(t, streamed, watch.Added, "v2.widgets.example.org")
	bookmark := next(t, streamed, watch.Bookmark, "")
	require.Equal(t, "true", bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey])
	k.Bind("f", provider, "f")
	for _, open := range []watch.Interface{w, streamed} {
		next(t, open, watch.Added, "v1.gadgets.example.org")
	}
	sees("v1.gadgets.example.org", "v2.widgets.example.org")
	require.LessOrEqual(t, lists, 1, "the informer has never listed again")
}

// testSchemaViewRights: who may get apibindings sees them. Nobody else learns what there is.
func testSchemaViewRights(t *testing.T, e *kit.Env) {
	k := kit.NewWorkspaceClient(e, "schemas-rights").ForTest(t)
	far := kit.NewWorkspaceClientOn(e, "schemas-elsewhere", 1).ForTest(t)
	user := k.As("user-1-token")
	answers := map[string]bool{}
	for _, cluster := range []string{k.ClusterName, "nowhere", far.ClusterName} {
		asked := user
		asked.ClusterName = cluster
		for _, view := range []kit.WorkspaceClient{schemaNames(asked, "*"), schemaNames(asked, cluster), schemaNames(asked, "other")} {
			for _, path := range []string{kit.APIsV1Alpha1 + "apiresourceschemas", "/apis", kit.APIsV1Alpha1 + "apibindings"} {
				code, says := view.TryDo(http.MethodGet, path, "")
				require.Equal(t, http.StatusForbidden, code, says)
				_, reason, _ := strings.Cut(says, "cannot ")
				_, reason, _ = strings.Cut(reason, ": ")
				reason, _, _ = strings.Cut(reason, `","reason"`)
				answers[reason] = true
			}
			code, says := view.TryDo(http.MethodPost, kit.APIsV1Alpha1+"apiresourceschemas", "{}")
			require.Equal(t, http.StatusForbidden, code, says)
		}
	}
	require.Len(t, answers, 1, "a stranger learns nothing: %v", answers)
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"see"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apibindings"],"verbs":["get"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"see"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"see"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	k.Eventually("the view opens", func() bool {
		code, _ := schemaNames(user, "*").TryDo(http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")
		return code == http.StatusOK
	})
	code, says := user.TryDo(http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")
	require.Equal(t, http.StatusForbidden, code, says)
	// A path of the shard leads there, and malformed ones nowhere.
	list, err := kinds.APIBindings.In(k.ShardClients["root"].Cluster(kit.Path("root:schemas-rights"))).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	byPath := user
	byPath.ClusterName = "root:schemas-rights"
	code, says = schemaNames(byPath, "root:schemas-rights").TryDo(http.MethodGet, kit.APIsV1Alpha1+"apiresourceschemas", "")
	require.Equal(t, http.StatusOK, code, says)
	for _, malformed := range []string{"/services/apiresourceschema/" + k.ClusterName, "/services/apiresourceschema/*/clusters/*/apis", "/services/apiresourceschema/" + k.ClusterName + "/clusters/" + k.ClusterName + "%2fx/apis"} {
		code, answer := kit.Do(t, k.Config, kit.Request{Method: http.MethodGet, Path: malformed})
		require.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, code, "%s", answer)
	}
}
