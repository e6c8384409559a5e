package apis

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/integration/kit"
)

var logicalClustersResource = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}

// typeView is what the initializer or terminator of a type of the logical cluster sees.
func typeView(k kit.WorkspaceClient, kind, name, cluster string) kit.WorkspaceClient {
	k.PathPrefix, k.ClusterName = "/services/"+kind+"workspaces/"+k.ClusterName+":"+name, cluster
	return k
}

// grant gives user-1 a verb on a WorkspaceType.
func grant(k kit.WorkspaceClient, name, verb string) {
	k.T.Helper()
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":%[1]q},"rules":[{"apiGroups":["tenancy.kcp.io"],"resources":["workspacetypes"],"resourceNames":[%[2]q],"verbs":[%[1]q]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`, verb, name)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`, verb)
}

// TestInitializers: initializers and terminators see the workspaces that wait for them,
// and their content as long as they do.
func TestInitializers(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("URLs", func(t *testing.T) { testTypeURLs(t, e, kit.NewWorkspaceClient(e, "urls-home").ForTest(t)) })
	for name, shard := range map[string]int{"of a type here": 0, "of a type on another shard": 1} {
		t.Run("initializing "+name, func(t *testing.T) {
			testInitializing(t, kit.NewWorkspaceClientOn(e, fmt.Sprint("init-home-", shard), shard).ForTest(t))
		})
		t.Run("terminating "+name, func(t *testing.T) {
			testTerminating(t, kit.NewWorkspaceClientOn(e, fmt.Sprint("term-home-", shard), shard).ForTest(t))
		})
		t.Run("policies, with exports and types "+strings.TrimPrefix(name, "of a type "), func(t *testing.T) {
			testPolicyInTypeViews(t, kit.NewWorkspaceClientOn(e, fmt.Sprint("policy-home-", shard), shard).ForTest(t))
		})
	}
}

// initialized makes the type apps, which has an initializer.
func initialized(k kit.WorkspaceClient) {
	k.T.Helper()
	k.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
}

// at is what is seen on a shard, wherever the logical cluster is.
func onShard(k kit.WorkspaceClient, shard int) kit.WorkspaceClient {
	k.Config = k.Shard(shard)
	return k
}

// withGroups is somebody whose certificate says that these groups have them.
func withGroups(k kit.WorkspaceClient, groups ...string) kit.WorkspaceClient {
	k.T.Helper()
	ca, err := pki.NewStore(filepath.Join(k.Dir, ".kcp"), time.Now).Authority("client-ca")
	require.NoError(k.T, err)
	pair, err := pki.NewStore(k.T.TempDir(), time.Now).Certificate("member", ca, pki.Client("member", groups...))
	require.NoError(k.T, err)
	k.Config = kit.WithClientCert(k.Config, pair)
	return k
}

// testInitializing: home has the type, and the workspace is on shard root.
func testInitializing(t *testing.T, home kit.WorkspaceClient) {
	initialized(home)
	user := onShard(home, 0).As("user-1-token")
	all := typeView(user, "initializing", "apps", "*")
	code, says := all.TryDo(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, kit.NotPermitted)
	grant(home, "apps", "initialize")
	all.Eventually("the view opens", func() bool {
		code, _ := all.TryDo(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
		return code == http.StatusOK
	})
	w := watchThrough(all, logicalClustersResource, "")
	home.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`)
	owner := home.As("user-2-token")
	owner.Eventually("the owner may make workspaces", func() bool {
		code, _ := owner.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
		return code == http.StatusOK
	})
	made := owner.CreateWorkspaceOfType("one", "apps", 0)
	added := next(t, w, watch.Added, "cluster")
	require.Equal(t, made.ClusterName, added.GetAnnotations()["kcp.io/cluster"])
	require.Len(t, kit.Field(all.Get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"), 1)
	require.NotContains(t, fmt.Sprint(all.Get("/apis").Object), "tenancy.kcp.io")
	code, says = all.TryDo(http.MethodGet, "/api/v1/configmaps", "")
	require.Equal(t, http.StatusNotFound, code, says)

	// The content, as the owner; directly the user has no rights there.
	in := typeView(user, "initializing", "apps", made.ClusterName)
	in.Eventually("the owner has its role", func() bool {
		code, _ := in.TryDo(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
		return code == http.StatusCreated || code == http.StatusConflict
	})
	in.Create(kit.ConfigMapsPath, `{"metadata":{"name":"made"}}`)
	code, says = applyAs(in, kit.ConfigMapsPath+"/applied", configMap("applied"))
	require.Equal(t, http.StatusCreated, code, says)
	require.Contains(t, fmt.Sprint(in.Get("/apis").Object), "tenancy.kcp.io")
	require.Equal(t, map[string]any{"logicalclusters": []any{"list", "watch"}}, verbsOf(all, "/apis/core.kcp.io/v1alpha1"))
	served := map[string]any{"logicalclusters": []any{"get"}, "logicalclusters/status": []any{"get", "patch", "update"}}
	require.Equal(t, served, verbsOf(in, "/apis/core.kcp.io/v1alpha1"))
	code, says = made.As("user-1-token").TryDo(http.MethodGet, kit.ConfigMapsPath+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// By the permissions that the type declares, in a group that says why.
	home.Do(http.StatusOK, http.MethodPatch, kit.TenancyPath+"workspacetypes/apps", `{"spec":{"initializerPermissions":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get","patch"]},{"apiGroups":[""],"resources":["secrets"],"verbs":["create","patch"]},{"apiGroups":["authentication.k8s.io"],"resources":["selfsubjectreviews"],"verbs":["create"]}]}}`)
	in.Eventually("only what is declared may be done", func() bool {
		code, _ := in.TryDo(http.MethodPost, kit.ConfigMapsPath, `{"metadata":{"name":"more"}}`)
		return code == http.StatusForbidden
	})
	in.Get(kit.ConfigMapsPath + "/made")
	code, says = applyAs(in, kit.ConfigMapsPath+"/other", configMap("other"))
	require.Equal(t, http.StatusForbidden, code, says)
	code, says = applyAs(in, "/api/v1/namespaces/default/secrets/applied", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"applied"}}`)
	require.Equal(t, http.StatusCreated, code, says)
	group := "system:kcp:initializer:" + home.ClusterName + ":apps"
	review := in.Create("/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	require.Contains(t, kit.Field(review, "status", "userInfo", "groups"), group)
	testInitialized(t, home, made, w)
	testInitializersGroup(t, made, group)
}

// testInitializersGroup: outside of the view the group is nobody's to have: whoever claims it gets nothing by it, even
// what roles give it.
func testInitializersGroup(t *testing.T, made kit.WorkspaceClient, group string) {
	t.Helper()
	made.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"groups"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":%q},{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"devs"}]}`, group)
	devs := withGroups(made, "devs")
	devs.Eventually("the other group of the binding has the role", func() bool {
		code, _ := devs.TryDo(http.MethodGet, kit.ConfigMapsPath+"/made", "")
		return code == http.StatusOK
	})
	code, says := withGroups(made, group).TryDo(http.MethodGet, kit.ConfigMapsPath+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)
}

// testInitialized: the initializer goes, and with it what the view shows, on the open watch w, too.
func testInitialized(t *testing.T, home, made kit.WorkspaceClient, w watch.Interface) {
	t.Helper()
	user := onShard(home, 0).As("user-1-token")
	in := typeView(user, "initializing", "apps", made.ClusterName)
	// The LogicalCluster: this initializer goes, and nothing else changes.
	in.Get(kit.LogicalClusterPath)
	code, says := in.TryDo(http.MethodPut, kit.LogicalClusterPath, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"}}`)
	require.Equal(t, http.StatusMethodNotAllowed, code, says)
	in.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"initializers":["other"]}}`)
	in.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"phase":"Ready"}}`)
	in.Do(http.StatusOK, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"conditions":[{"type":"Seen","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	in.Do(http.StatusOK, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"initializers":[]}}`)
	gone := next(t, w, watch.Deleted, "cluster")
	require.Equal(t, made.ClusterName, gone.GetAnnotations()["kcp.io/cluster"])
	require.Empty(t, kit.Field(typeView(user, "initializing", "apps", "*").Get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"))
	home.Eventually("the workspace is ready", func() bool {
		return kit.Field(home.Get(kit.TenancyPath+"workspaces/one"), "status", "phase") == "Ready"
	})
	code, says = in.TryDo(http.MethodGet, kit.ConfigMapsPath+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)
	code, says = in.TryDo(http.MethodGet, kit.LogicalClusterPath, "")
	require.Equal(t, http.StatusNotFound, code, says)
	for _, other := range []kit.WorkspaceClient{typeView(user, "initializing", "apps", home.ClusterName), typeView(user, "initializing", "apps", "nowhere"), typeView(user, "initializing", "apps", "root")} {
		code, says = other.TryDo(http.MethodGet, "/api/v1/secrets", "")
		require.Equal(t, http.StatusForbidden, code, says)
	}

	// A type that does not exist, for who may do everything there.
	code, says = typeView(home, "initializing", "none", "*").TryDo(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	require.Equal(t, http.StatusServiceUnavailable, code, says)
}

// verbsOf returns the verbs of the resources in discovery of a group version.
func verbsOf(k kit.WorkspaceClient, path string) map[string]any {
	k.T.Helper()
	verbs := map[string]any{}
	resources, _, err := unstructured.NestedSlice(k.Get(path).Object, "resources")
	require.NoError(k.T, err)
	for _, r := range resources {
		resource := r.(map[string]any)
		verbs[resource["name"].(string)] = resource["verbs"]
	}
	return verbs
}

// testTypeURLs: the type says where its views are, on each shard, and goes on saying so.
func testTypeURLs(t *testing.T, e *kit.Env, home kit.WorkspaceClient) {
	t.Helper()
	initialized(home)
	var of *unstructured.Unstructured
	told := func() (urls []string) {
		of = home.Get(kit.TenancyPath + "workspacetypes/apps")
		views, _, _ := unstructured.NestedSlice(of.Object, "status", "virtualWorkspaces")
		for _, v := range views {
			view := v.(map[string]any)
			require.Contains(t, view["url"], fmt.Sprintf("/services/%vworkspaces/%s:apps", view["type"], home.ClusterName))
			urls = append(urls, view["url"].(string))
		}
		return urls
	}
	home.Eventually("there are two views on each shard", func() bool { return len(told()) == 4 })
	require.Equal(t, "True <nil>", kit.Condition(of, "VirtualWorkspaceURLsReady"))
	require.Equal(t, "True <nil>", kit.Condition(of, "Ready"))
	require.True(t, strings.HasPrefix(told()[0], e.VirtualWorkspaces(0)+"/services/initializingworkspaces/"), told()[0])
	for _, url := range told() {
		view := kit.WorkspaceClient{Env: home.Env, Config: e.Proxy(), ClusterName: "*", PathPrefix: strings.TrimPrefix(url, e.Proxy().Host)}
		code, says := view.TryDo(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "")
		require.Equal(t, http.StatusOK, code, says)
		require.Contains(t, says, `"type":"BOOKMARK"`, url)
	}
	version := of.GetResourceVersion()

	// A shard that comes and goes.
	shards := kinds.Shards.In(e.ProxyClient.Cluster(kit.Path("root")))
	_, err := shards.Create(t.Context(), &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Annotations: map[string]string{"experimental.core.kcp.io/unschedulable": "true"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: "https://127.0.0.1:1", ExternalURL: "https://127.0.0.1:1", VirtualWorkspaceURL: "https://views.example.org"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = shards.Delete(context.WithoutCancel(t.Context()), "elsewhere", metav1.DeleteOptions{}) })
	home.Eventually("its views are told", func() bool {
		return slices.Contains(told(), "https://views.example.org/services/terminatingworkspaces/"+home.ClusterName+":apps")
	})
	require.NotEqual(t, version, of.GetResourceVersion())
	require.NoError(t, shards.Delete(t.Context(), "elsewhere", metav1.DeleteOptions{}))
	home.Eventually("its views are gone", func() bool { return len(told()) == 4 })
}

// testTerminating: home has the type, and the workspace is on shard root.
func testTerminating(t *testing.T, home kit.WorkspaceClient) {
	home.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"terminator":true,"terminatorPermissions":[{"apiGroups":["","core.kcp.io"],"resources":["*"],"verbs":["*"]}]}}`)
	grant(home, "apps", "terminate")
	made := home.CreateWorkspaceOfType("one", "apps", 0)
	home.Eventually("the workspace is ready", func() bool {
		return kit.Field(home.Get(kit.TenancyPath+"workspaces/one"), "status", "phase") == "Ready"
	})
	made.Create(kit.ConfigMapsPath, `{"metadata":{"name":"left"}}`)
	user := onShard(home, 0).As("user-1-token")
	all, in := typeView(user, "terminating", "apps", "*"), typeView(user, "terminating", "apps", made.ClusterName)
	all.Eventually("the view opens", func() bool {
		code, _ := all.TryDo(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
		return code == http.StatusOK
	})
	require.Empty(t, kit.Field(all.Get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"), "nothing is deleted")
	code, says := in.TryDo(http.MethodGet, kit.ConfigMapsPath+"/left", "")
	require.Equal(t, http.StatusForbidden, code, says)
	w := watchThrough(all, logicalClustersResource, "")

	home.Do(http.StatusOK, http.MethodDelete, kit.TenancyPath+"workspaces/one", "")
	waiting := next(t, w, watch.Added, "cluster")
	require.NotNil(t, waiting.GetDeletionTimestamp())
	in.Do(http.StatusOK, http.MethodDelete, kit.ConfigMapsPath+"/left", "")
	code, says = applyAs(in, kit.ConfigMapsPath+"/applied", configMap("applied"))
	require.Equal(t, http.StatusCreated, code, says)
	in.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"terminators":["other"]}}`)
	in.Do(http.StatusOK, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"terminators":null}}`)
	home.Eventually("the workspace is gone", func() bool {
		code, _ := home.TryDo(http.MethodGet, kit.TenancyPath+"workspaces/one", "")
		return code == http.StatusNotFound
	})
	next(t, w, watch.Deleted, "cluster")
}
