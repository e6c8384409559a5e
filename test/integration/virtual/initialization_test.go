package virtual

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
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

var logicalClustersResource = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}

// typeVirtualWorkspace returns a client of the virtual workspace of the initializer or terminator of a type.
func typeVirtualWorkspace(k kit.WorkspaceClient, kind, name, cluster string) kit.WorkspaceClient {
	k.PathPrefix, k.ClusterName = "/services/"+kind+"workspaces/"+k.ClusterName+":"+name, cluster
	return k
}

// grant allows user-1 a verb on a WorkspaceType.
func grant(k kit.WorkspaceClient, name, verb string) {
	k.T.Helper()
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":%[1]q},"rules":[{"apiGroups":["tenancy.kcp.io"],"resources":["workspacetypes"],"resourceNames":[%[2]q],"verbs":[%[1]q]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`, verb, name)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`, verb)
}

// TestInitializers checks that initializers and terminators have access to the workspaces that wait for them, and their content meanwhile.
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
			testPolicyForInitializers(t, kit.NewWorkspaceClientOn(e, fmt.Sprint("policy-home-", shard), shard).ForTest(t))
		})
	}
}

// createInitializedType creates the type apps, which has an initializer.
func createInitializedType(k kit.WorkspaceClient) {
	k.T.Helper()
	k.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
}

// withGroups returns a client with a certificate that contains groups.
func withGroups(k kit.WorkspaceClient, groups ...string) kit.WorkspaceClient {
	k.T.Helper()
	ca, err := pki.NewStore(filepath.Join(k.Dir, ".kcp"), time.Now).Authority("client-ca")
	require.NoError(k.T, err)
	pair, err := pki.NewStore(k.T.TempDir(), time.Now).Certificate("member", ca, pki.Client("member", groups...))
	require.NoError(k.T, err)
	k.Config = kit.WithClientCert(k.Config, pair)
	return k
}

// testInitializing has the type in home, and the workspace on shard root.
func testInitializing(t *testing.T, home kit.WorkspaceClient) {
	createInitializedType(home)
	user := kit.OnShard(home, 0).As("user-1-token")
	all := typeVirtualWorkspace(user, "initializing", "apps", "*")
	message := all.RequireCode(http.StatusForbidden, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	require.Contains(t, message, kit.NotPermitted)
	grant(home, "apps", "initialize")
	all.UntilCode(http.StatusOK, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	w := kit.WatchThrough(all, logicalClustersResource, "")
	owner := home.BindAdmin("user-2")
	owner.UntilCode(http.StatusOK, http.MethodGet, kit.TenancyPath+"workspaces", "")
	made := owner.CreateWorkspaceOfType("one", "apps", 0)
	added := kit.Next(t, w, watch.Added, "cluster")
	require.Equal(t, made.ClusterName, added.GetAnnotations()["kcp.io/cluster"])
	require.Len(t, kit.Field(all.Get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"), 1)
	require.NotContains(t, fmt.Sprint(all.Get("/apis").Object), "tenancy.kcp.io")
	all.RequireCode(http.StatusNotFound, http.MethodGet, "/api/v1/configmaps", "")

	// The initializer acts as the owner. The user itself has no permissions in the workspace.
	in := typeVirtualWorkspace(user, "initializing", "apps", made.ClusterName)
	in.Eventually("the owner is authorized", func() bool {
		code, _ := in.TryDo(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
		return code == http.StatusCreated || code == http.StatusConflict
	})
	in.Create(kit.ConfigMapsPath, `{"metadata":{"name":"made"}}`)
	in.Do(http.StatusCreated, http.MethodPatch, kit.ConfigMapsPath+"/applied?fieldManager=test", configMap("applied"))
	require.Contains(t, fmt.Sprint(in.Get("/apis").Object), "tenancy.kcp.io")
	require.Equal(t, map[string]any{"logicalclusters": []any{"list", "watch"}}, verbsOf(all, "/apis/core.kcp.io/v1alpha1"))
	served := map[string]any{"logicalclusters": []any{"get"}, "logicalclusters/status": []any{"get", "patch", "update"}}
	require.Equal(t, served, verbsOf(in, "/apis/core.kcp.io/v1alpha1"))
	made.As("user-1-token").RequireCode(http.StatusForbidden, http.MethodGet, kit.ConfigMapsPath+"/made", "")

	// With permissions that the type declares, as a member of the initializer group.
	home.Patch(kit.TenancyPath+"workspacetypes/apps", `{"spec":{"initializerPermissions":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get","patch"]},{"apiGroups":[""],"resources":["secrets"],"verbs":["create","patch"]},{"apiGroups":["authentication.k8s.io"],"resources":["selfsubjectreviews"],"verbs":["create"]}]}}`)
	in.UntilCode(http.StatusForbidden, http.MethodPost, kit.ConfigMapsPath, `{"metadata":{"name":"more"}}`)
	in.Get(kit.ConfigMapsPath + "/made")
	in.Do(http.StatusForbidden, http.MethodPatch, kit.ConfigMapsPath+"/other?fieldManager=test", configMap("other"))
	in.Do(http.StatusCreated, http.MethodPatch, "/api/v1/namespaces/default/secrets/applied?fieldManager=test", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"applied"}}`)
	group := "system:kcp:initializer:" + home.ClusterName + ":apps"
	review := in.Create("/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	require.Contains(t, kit.Field(review, "status", "userInfo", "groups"), group)
	testInitialized(t, home, made, w)
	testInitializersGroup(t, made, group)
}

// testInitializersGroup checks that the initializer group has no effect outside of the virtual workspace, even if roles are bound to it.
func testInitializersGroup(t *testing.T, made kit.WorkspaceClient, group string) {
	t.Helper()
	made.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"groups"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":%q},{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"devs"}]}`, group)
	devs := withGroups(made, "devs")
	devs.UntilCode(http.StatusOK, http.MethodGet, kit.ConfigMapsPath+"/made", "")
	withGroups(made, group).RequireCode(http.StatusForbidden, http.MethodGet, kit.ConfigMapsPath+"/made", "")
}

// testInitialized checks that the workspace disappears from the virtual workspace if the initializer is removed, also on the open watch w.
func testInitialized(t *testing.T, home, made kit.WorkspaceClient, w watch.Interface) {
	t.Helper()
	user := kit.OnShard(home, 0).As("user-1-token")
	in := typeVirtualWorkspace(user, "initializing", "apps", made.ClusterName)
	// Of the LogicalCluster only this initializer may be removed.
	in.Get(kit.LogicalClusterPath)
	in.RequireCode(http.StatusMethodNotAllowed, http.MethodPut, kit.LogicalClusterPath, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"}}`)
	in.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"initializers":["other"]}}`)
	in.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"phase":"Ready"}}`)
	in.Patch(kit.LogicalClusterPath+"/status", `{"status":{"conditions":[{"type":"Seen","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	in.Patch(kit.LogicalClusterPath+"/status", `{"status":{"initializers":[]}}`)
	deleted := kit.Next(t, w, watch.Deleted, "cluster")
	require.Equal(t, made.ClusterName, deleted.GetAnnotations()["kcp.io/cluster"])
	require.Empty(t, kit.Field(typeVirtualWorkspace(user, "initializing", "apps", "*").Get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"))
	kit.UntilPhase(home, kit.TenancyPath+"workspaces/one", "Ready")
	in.RequireCode(http.StatusForbidden, http.MethodGet, kit.ConfigMapsPath+"/made", "")
	in.RequireCode(http.StatusNotFound, http.MethodGet, kit.LogicalClusterPath, "")
	for _, other := range []kit.WorkspaceClient{typeVirtualWorkspace(user, "initializing", "apps", home.ClusterName), typeVirtualWorkspace(user, "initializing", "apps", "nowhere"), typeVirtualWorkspace(user, "initializing", "apps", "root")} {
		other.RequireCode(http.StatusForbidden, http.MethodGet, "/api/v1/secrets", "")
	}

	// A type that does not exist, as an administrator.
	typeVirtualWorkspace(home, "initializing", "none", "*").RequireCode(http.StatusServiceUnavailable, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
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

// testTypeURLs checks that the status of a type contains the URLs of its virtual workspaces on each shard.
func testTypeURLs(t *testing.T, e *kit.Env, home kit.WorkspaceClient) {
	t.Helper()
	createInitializedType(home)
	var of *unstructured.Unstructured
	urls := func() (urls []string) {
		of = home.Get(kit.TenancyPath + "workspacetypes/apps")
		vws, _, _ := unstructured.NestedSlice(of.Object, "status", "virtualWorkspaces")
		for _, v := range vws {
			vw := v.(map[string]any)
			require.Contains(t, vw["url"], fmt.Sprintf("/services/%vworkspaces/%s:apps", vw["type"], home.ClusterName))
			urls = append(urls, vw["url"].(string))
		}
		return urls
	}
	home.Eventually("the status contains two URLs for each shard", func() bool { return len(urls()) == 4 })
	require.Equal(t, "True <nil>", kit.Condition(of, "VirtualWorkspaceURLsReady"))
	require.Equal(t, "True <nil>", kit.Condition(of, "Ready"))
	require.True(t, strings.HasPrefix(urls()[0], e.VirtualWorkspaces(0)+"/services/initializingworkspaces/"), urls()[0])
	for _, url := range urls() {
		vw := kit.WorkspaceClient{Env: home.Env, Config: e.Proxy(), ClusterName: "*", PathPrefix: strings.TrimPrefix(url, e.Proxy().Host)}
		require.Contains(t, vw.RequireCode(http.StatusOK, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", ""), `"type":"BOOKMARK"`, url)
	}
	version := of.GetResourceVersion()

	// A shard that is added and removed.
	shards := kinds.Shards.In(e.ProxyClient.Cluster(kit.Path("root")))
	harness.Create(t, shards, &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Annotations: map[string]string{"experimental.core.kcp.io/unschedulable": "true"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: "https://127.0.0.1:1", ExternalURL: "https://127.0.0.1:1", VirtualWorkspaceURL: "https://vw.example.org"},
	})
	t.Cleanup(func() { _ = shards.Delete(context.WithoutCancel(t.Context()), "elsewhere", metav1.DeleteOptions{}) })
	home.Eventually("the status contains the URLs of the new shard", func() bool {
		return slices.Contains(urls(), "https://vw.example.org/services/terminatingworkspaces/"+home.ClusterName+":apps")
	})
	require.NotEqual(t, version, of.GetResourceVersion())
	require.NoError(t, shards.Delete(t.Context(), "elsewhere", metav1.DeleteOptions{}))
	home.Eventually("the URLs of the deleted shard are removed", func() bool { return len(urls()) == 4 })
}

// testTerminating has the type in home, and the workspace on shard root.
func testTerminating(t *testing.T, home kit.WorkspaceClient) {
	home.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"terminator":true,"terminatorPermissions":[{"apiGroups":["","core.kcp.io"],"resources":["*"],"verbs":["*"]}]}}`)
	grant(home, "apps", "terminate")
	made := home.CreateWorkspaceOfType("one", "apps", 0)
	kit.UntilPhase(home, kit.TenancyPath+"workspaces/one", "Ready")
	made.Create(kit.ConfigMapsPath, `{"metadata":{"name":"left"}}`)
	user := kit.OnShard(home, 0).As("user-1-token")
	all, in := typeVirtualWorkspace(user, "terminating", "apps", "*"), typeVirtualWorkspace(user, "terminating", "apps", made.ClusterName)
	all.UntilCode(http.StatusOK, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	require.Empty(t, kit.Field(all.Get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"), "no workspace is being deleted")
	in.RequireCode(http.StatusForbidden, http.MethodGet, kit.ConfigMapsPath+"/left", "")
	w := kit.WatchThrough(all, logicalClustersResource, "")

	home.Delete(kit.TenancyPath + "workspaces/one")
	waiting := kit.Next(t, w, watch.Added, "cluster")
	require.NotNil(t, waiting.GetDeletionTimestamp())
	in.Delete(kit.ConfigMapsPath + "/left")
	in.Do(http.StatusCreated, http.MethodPatch, kit.ConfigMapsPath+"/applied?fieldManager=test", configMap("applied"))
	in.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"terminators":["other"]}}`)
	in.Patch(kit.LogicalClusterPath+"/status", `{"status":{"terminators":null}}`)
	home.UntilDeleted(kit.TenancyPath + "workspaces/one")
	kit.Next(t, w, watch.Deleted, "cluster")
}
