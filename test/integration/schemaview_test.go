package integration

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
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
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

var schemasResource = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiresourceschemas"}

// schemas is what a logical cluster sees of the schemas that it has bound.
func (k apiKinds) schemas(cluster string) apiKinds {
	k.view, k.cluster = "/services/apiresourceschema/"+k.cluster, cluster
	return k
}

// TestSchemaView: a consumer sees the schemas of the APIs that it has bound, also those of
// a provider on another shard, and nobody else's.
func TestSchemaView(t *testing.T) {
	e := newEnv(t, two.Get(t))
	t.Run("content", func(t *testing.T) { testSchemaView(t, e) })
	t.Run("informer", func(t *testing.T) { testSchemaInformer(t, e) })
	t.Run("rights", func(t *testing.T) { testSchemaViewRights(t, e) })
}

func testSchemaView(t *testing.T, e *env) {
	far := newAPIKindsOn(e, "schemas-far", 1).in(t)
	far.export("e", far.schema("v1", "widgets", "size"))
	original := far.get(apisV1 + "apiresourceschemas/v1.widgets.example.org")
	k, other := newAPIKinds(e, "schemas-consumer").in(t), newAPIKinds(e, "schemas-other").in(t)
	other.export("o", other.schema("v1", "others", "size"))
	other.bind("o", other, "o")
	other.until("o", "Ready", "True <nil>")
	all, one := k.schemas("*"), k.schemas(k.cluster)
	require.Empty(t, tenants(all.get(apisV1+"apiresourceschemas")))
	k.bind("e", far, "e")
	k.until("e", "Ready", "True <nil>")

	for _, view := range []apiKinds{all, one} {
		view.eventually("the view has heard of it", func() bool { return len(tenants(view.get(apisV1+"apiresourceschemas"))) == 1 })
		list := view.get(apisV1 + "apiresourceschemas")
		require.Len(t, tenants(list), 1)
		require.Contains(t, fmt.Sprint(field(list, "items")), ".workspaces.tenancy.kcp.io", "what universal binds")
		shown := view.get(apisV1 + "apiresourceschemas/v1.widgets.example.org")
		require.Equal(t, "APIResourceSchema", shown.GetKind())
		require.Equal(t, original.GetUID(), shown.GetUID())
		require.Equal(t, far.cluster, shown.GetAnnotations()["kcp.io/cluster"])
		require.Equal(t, field(original, "spec"), field(shown, "spec"))
		require.Equal(t, tenants(list)[0], shown.Object)
		named := view.get(apisV1 + "apiresourceschemas?fieldSelector=metadata.name%3Dv1.widgets.example.org")
		require.Len(t, field(named, "items"), 1)
		require.Empty(t, field(view.get(apisV1+"apiresourceschemas?fieldSelector=metadata.name%3Dv1.others.example.org"), "items"))
		require.NotEmpty(t, field(view.get(apisV1+"apiresourceschemas?limit=1&resourceVersion=0"), "items"))
		var parts []any
		for _, selector := range []string{shardRange("uid", 0, 2), shardRange("uid", 2, 4)} {
			part := view.get(apisV1 + "apiresourceschemas?shardSelector=" + url.QueryEscape(selector))
			require.Equal(t, selector, field(part, "metadata", "shardInfo", "selector"))
			items, _ := field(part, "items").([]any)
			parts = append(parts, items...)
		}
		require.ElementsMatch(t, field(list, "items"), parts)

		// Documents tell of that, and of nothing else.
		groups := fmt.Sprint(view.get("/apis").Object)
		require.Contains(t, groups, "apis.kcp.io")
		require.NotContains(t, groups, "tenancy.kcp.io")
		resources := fmt.Sprint(view.get("/apis/apis.kcp.io/v1alpha1").Object)
		require.Contains(t, resources, "apiresourceschemas")
		require.NotContains(t, resources, "apibindings")
		paths := field(view.get("/openapi/v3"), "paths").(map[string]any)
		require.Equal(t, []string{"apis/apis.kcp.io/v1alpha1"}, slices.Sorted(maps.Keys(paths)))

		for _, path := range []string{
			apisV1 + "apiresourceschemas/v1.others.example.org", apisV1 + "apiresourceschemas/" + string(original.GetUID()), apisV1 + "apibindings", "/api/v1/configmaps",
			apisV1 + "apiresourceschemas/v1.widgets.example.org/status", "/apis/internal.apis.shardplane.io/v1alpha1/boundschemas", "/version",
		} {
			code, says := view.status(http.MethodGet, path, "")
			require.Equal(t, http.StatusNotFound, code, "%s: %s", path, says)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			code, says := view.status(method, apisV1+"apiresourceschemas/v1.widgets.example.org", "{}")
			require.Equal(t, http.StatusMethodNotAllowed, code, says)
		}
	}
	code, says := k.schemas(other.cluster).status(http.MethodGet, apisV1+"apiresourceschemas", "")
	require.Equal(t, http.StatusNotFound, code, says)

	// What kubectl shows, tables and all.
	says = all.kubectl("get", "apiresourceschemas", "-o", "wide")
	require.Contains(t, says, "v1.widgets.example.org")
	says = one.kubectl("get", "apiresourceschemas", "v1.widgets.example.org", "-o", "yaml")
	require.Contains(t, says, "uid: "+string(original.GetUID()))

	// The originals may go.
	far.ask(http.StatusOK, http.MethodDelete, apisV1+"apiresourceschemas/v1.widgets.example.org", "")
	require.Len(t, tenants(all.get(apisV1+"apiresourceschemas")), 1)
}

// tenants returns those of a list that are not the system's.
func tenants(list *unstructured.Unstructured) []any {
	items, _ := field(list, "items").([]any)
	return slices.DeleteFunc(slices.Clone(items), func(item any) bool {
		return !strings.HasSuffix(fmt.Sprint(item.(map[string]any)["metadata"].(map[string]any)["name"]), ".example.org")
	})
}

// kubectl runs kubectl below the logical cluster.
func (k apiKinds) kubectl(args ...string) string {
	k.t.Helper()
	file := filepath.Join(k.t.TempDir(), "kubeconfig")
	require.NoError(k.t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: k.config.Host + k.view + "/clusters/" + k.cluster, CertificateAuthority: k.config.CAFile, CertificateAuthorityData: k.config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificate: k.config.CertFile, ClientCertificateData: k.config.CertData, ClientKey: k.config.KeyFile, ClientKeyData: k.config.KeyData, Token: k.config.BearerToken,
		}},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, file))
	command := exec.CommandContext(k.t.Context(), harness.Kubectl(k.t), append([]string{"--kubeconfig", file, "--cache-dir", k.t.TempDir()}, args...)...) //nolint:gosec // our own
	out, err := command.CombinedOutput()
	require.NoError(k.t, err, "%s", out)
	return string(out)
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
func testSchemaInformer(t *testing.T, e *env) {
	provider := newAPIKinds(e, "schemas-provider").in(t)
	k := newAPIKinds(e, "schemas-informed").in(t)
	config := rest.CopyConfig(k.config)
	config.Host += "/services/apiresourceschema/" + k.cluster + "/clusters/*"
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
		k.eventually(strings.Join(names, ", "), func() bool { return slices.Equal(names, now.names()) })
	}
	sees()

	provider.export("e", provider.schema("v1", "widgets", "size"))
	k.bind("e", provider, "e")
	sees("v1.widgets.example.org")
	provider.export("f", provider.schema("v1", "gadgets", "size"))
	k.bind("f", provider, "f")
	sees("v1.gadgets.example.org", "v1.widgets.example.org")
	// Another schema for what is bound.
	second := provider.schema("v2", "widgets", "size")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"`+second+`","storage":{"crd":{}}}]}}`)
	sees("v1.gadgets.example.org", "v2.widgets.example.org")

	// A watch that resumes is told what it has missed, and so far as it is.
	before, err := in.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/f", "")
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
	k.bind("f", provider, "f")
	for _, open := range []watch.Interface{w, streamed} {
		next(t, open, watch.Added, "v1.gadgets.example.org")
	}
	sees("v1.gadgets.example.org", "v2.widgets.example.org")
	require.LessOrEqual(t, lists, 1, "the informer has never listed again")
}

// testSchemaViewRights: who may get apibindings sees them. Nobody else learns what there is.
func testSchemaViewRights(t *testing.T, e *env) {
	k := newAPIKinds(e, "schemas-rights").in(t)
	far := newAPIKindsOn(e, "schemas-elsewhere", 1).in(t)
	user := k.as("user-1-token")
	answers := map[string]bool{}
	for _, cluster := range []string{k.cluster, "nowhere", far.cluster} {
		asked := user
		asked.cluster = cluster
		for _, view := range []apiKinds{asked.schemas("*"), asked.schemas(cluster), asked.schemas("other")} {
			for _, path := range []string{apisV1 + "apiresourceschemas", "/apis", apisV1 + "apibindings"} {
				code, says := view.status(http.MethodGet, path, "")
				require.Equal(t, http.StatusForbidden, code, says)
				_, reason, _ := strings.Cut(says, "cannot ")
				_, reason, _ = strings.Cut(reason, ": ")
				reason, _, _ = strings.Cut(reason, `","reason"`)
				answers[reason] = true
			}
			code, says := view.status(http.MethodPost, apisV1+"apiresourceschemas", "{}")
			require.Equal(t, http.StatusForbidden, code, says)
		}
	}
	require.Len(t, answers, 1, "a stranger learns nothing: %v", answers)
	k.create(rbacPath+"clusterroles", `{"metadata":{"name":"see"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apibindings"],"verbs":["get"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	k.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"see"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"see"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	k.eventually("the view opens", func() bool {
		code, _ := user.schemas("*").status(http.MethodGet, apisV1+"apiresourceschemas", "")
		return code == http.StatusOK
	})
	code, says := user.status(http.MethodGet, apisV1+"apiresourceschemas", "")
	require.Equal(t, http.StatusForbidden, code, says)
	// A path of the shard leads there, and malformed ones nowhere.
	list, err := kinds.APIBindings.In(k.shards["root"].Cluster(path("root:schemas-rights"))).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	byPath := user
	byPath.cluster = "root:schemas-rights"
	code, says = byPath.schemas("root:schemas-rights").status(http.MethodGet, apisV1+"apiresourceschemas", "")
	require.Equal(t, http.StatusOK, code, says)
	for _, malformed := range []string{"/services/apiresourceschema/" + k.cluster, "/services/apiresourceschema/*/clusters/*/apis", "/services/apiresourceschema/" + k.cluster + "/clusters/" + k.cluster + "%2fx/apis"} {
		code, answer := do(t, k.config, call{method: http.MethodGet, path: malformed})
		require.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, code, "%s", answer)
	}
}
