package integration

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const (
	tenancyPath = "/apis/tenancy.kcp.io/v1alpha1/"
	ownLC       = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
)

// typeView is what the initializer or terminator of a type of the logical cluster sees.
func (k apiKinds) typeView(kind, name, cluster string) apiKinds {
	k.view, k.cluster = "/services/"+kind+"workspaces/"+k.cluster+":"+name, cluster
	return k
}

// grant gives user-1 a verb on a WorkspaceType.
func (k apiKinds) grant(name, verb string) {
	k.t.Helper()
	k.create(rbacPath+"clusterroles", `{"metadata":{"name":%[1]q},"rules":[{"apiGroups":["tenancy.kcp.io"],"resources":["workspacetypes"],"resourceNames":[%[2]q],"verbs":[%[1]q]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`, verb, name)
	k.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`, verb)
}

// TestInitializers: initializers and terminators see the workspaces that wait for them,
// and their content as long as they do.
func TestInitializers(t *testing.T) {
	e := newEnv(t, two.Get(t))
	t.Run("initializing", func(t *testing.T) { testInitializing(t, e) })
	t.Run("terminating", func(t *testing.T) { testTerminating(t, e) })
}

// workspaceOf makes a workspace of a type, as an administrator, and returns its logical
// cluster once it exists.
func (k apiKinds) workspaceOf(name, typeName string) apiKinds {
	k.t.Helper()
	k.create(tenancyPath+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":{"name":%q},"location":{"selector":{"matchLabels":{"name":"root"}}}}}`, name, typeName)
	made := k
	made.config = k.Shard(0)
	k.eventually("the logical cluster exists", func() bool {
		made.cluster, _ = field(k.get(tenancyPath+"workspaces/"+name), "spec", "cluster").(string)
		return made.cluster != ""
	})
	made.eventually("it is there", func() bool {
		code, _ := made.status(http.MethodGet, ownLC, "")
		return code == http.StatusOK
	})
	return made
}

func testInitializing(t *testing.T, e *env) {
	home := newAPIKinds(e, "init-home").in(t)
	home.create(tenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
	testTypeURLs(t, e, home)
	user := home.as("user-1-token")
	all := user.typeView("initializing", "apps", "*")
	code, says := all.status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, notPermitted)
	home.grant("apps", "initialize")
	all.eventually("the view opens", func() bool {
		code, _ := all.status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
		return code == http.StatusOK
	})
	w := all.follow(schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}, "")
	home.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`)
	owner := home.as("user-2-token")
	owner.eventually("the owner may make workspaces", func() bool {
		code, _ := owner.status(http.MethodGet, tenancyPath+"workspaces", "")
		return code == http.StatusOK
	})
	made := owner.workspaceOf("one", "apps")
	added := next(t, w, watch.Added, "cluster")
	require.Equal(t, made.cluster, added.GetAnnotations()["kcp.io/cluster"])
	require.Len(t, field(all.get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"), 1)
	require.NotContains(t, fmt.Sprint(all.get("/apis").Object), "tenancy.kcp.io")
	code, says = all.status(http.MethodGet, "/api/v1/configmaps", "")
	require.Equal(t, http.StatusNotFound, code, says)

	// The content, as the owner; directly the user has no rights there.
	in := user.typeView("initializing", "apps", made.cluster)
	in.eventually("the owner has its role", func() bool {
		code, _ := in.status(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
		return code == http.StatusCreated || code == http.StatusConflict
	})
	in.create(configMaps, `{"metadata":{"name":"made"}}`)
	require.Contains(t, fmt.Sprint(in.get("/apis").Object), "tenancy.kcp.io")
	code, says = made.as("user-1-token").status(http.MethodGet, configMaps+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// By the permissions that the type declares.
	home.ask(http.StatusOK, http.MethodPatch, tenancyPath+"workspacetypes/apps", `{"spec":{"initializerPermissions":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}}`)
	in.eventually("only what is declared may be done", func() bool {
		code, _ := in.status(http.MethodPost, configMaps, `{"metadata":{"name":"more"}}`)
		return code == http.StatusForbidden
	})
	in.get(configMaps + "/made")

	// The LogicalCluster: this initializer goes, and nothing else changes.
	in.get(ownLC)
	code, says = in.status(http.MethodPut, ownLC, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	in.ask(http.StatusUnprocessableEntity, http.MethodPatch, ownLC+"/status", `{"status":{"initializers":["other"]}}`)
	in.ask(http.StatusUnprocessableEntity, http.MethodPatch, ownLC+"/status", `{"status":{"phase":"Ready"}}`)
	in.ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"conditions":[{"type":"Seen","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	in.ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"initializers":[]}}`)
	next(t, w, watch.Deleted, "cluster")
	home.eventually("the workspace is ready", func() bool {
		return field(home.get(tenancyPath+"workspaces/one"), "status", "phase") == "Ready"
	})
	code, says = in.status(http.MethodGet, configMaps+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)
	code, says = in.status(http.MethodGet, ownLC, "")
	require.Equal(t, http.StatusNotFound, code, says)
	for _, other := range []apiKinds{user.typeView("initializing", "apps", home.cluster), user.typeView("initializing", "apps", "nowhere"), user.typeView("initializing", "apps", "root")} {
		code, says = other.status(http.MethodGet, "/api/v1/secrets", "")
		require.Equal(t, http.StatusForbidden, code, says)
	}

	// A type that does not exist, for who may do everything there.
	code, says = home.typeView("initializing", "none", "*").status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	require.Equal(t, http.StatusServiceUnavailable, code, says)
	// The group is nobody's to have: whoever claims it gets nothing by it.
	claims := apiKinds{env: home.env, config: home.config, cluster: made.cluster}
	code, says = claims.as("user-1-token").status(http.MethodGet, configMaps+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)
}

// testTypeURLs: the type says where its views are, on each shard, and goes on saying so.
func testTypeURLs(t *testing.T, e *env, home apiKinds) {
	t.Helper()
	var of *unstructured.Unstructured
	told := func() (urls []string) {
		of = home.get(tenancyPath + "workspacetypes/apps")
		views, _, _ := unstructured.NestedSlice(of.Object, "status", "virtualWorkspaces")
		for _, v := range views {
			view := v.(map[string]any)
			require.Contains(t, view["url"], fmt.Sprintf("/services/%vworkspaces/%s:apps", view["type"], home.cluster))
			urls = append(urls, view["url"].(string))
		}
		return urls
	}
	home.eventually("there are two views on each shard", func() bool { return len(told()) == 4 })
	require.Equal(t, "True <nil>", condition(of, "VirtualWorkspaceURLsReady"))
	require.Equal(t, "True <nil>", condition(of, "Ready"))
	require.True(t, strings.HasPrefix(told()[0], e.Shard(0).Host+"/services/initializingworkspaces/"), told()[0])
	version := of.GetResourceVersion()

	// A shard that comes and goes.
	shards := kinds.Shards.In(e.proxy.Cluster(path("root")))
	_, err := shards.Create(t.Context(), &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Annotations: map[string]string{"experimental.core.kcp.io/unschedulable": "true"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: "https://127.0.0.1:1", ExternalURL: "https://127.0.0.1:1", VirtualWorkspaceURL: "https://views.example.org"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = shards.Delete(context.WithoutCancel(t.Context()), "elsewhere", metav1.DeleteOptions{}) })
	home.eventually("its views are told", func() bool {
		return slices.Contains(told(), "https://views.example.org/services/terminatingworkspaces/"+home.cluster+":apps")
	})
	require.NotEqual(t, version, of.GetResourceVersion())
	require.NoError(t, shards.Delete(t.Context(), "elsewhere", metav1.DeleteOptions{}))
	home.eventually("its views are gone", func() bool { return len(told()) == 4 })
}

func testTerminating(t *testing.T, e *env) {
	home := newAPIKinds(e, "term-home").in(t)
	home.create(tenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"terminator":true,"terminatorPermissions":[{"apiGroups":["","core.kcp.io"],"resources":["*"],"verbs":["*"]}]}}`)
	home.grant("apps", "terminate")
	made := home.workspaceOf("one", "apps")
	home.eventually("the workspace is ready", func() bool {
		return field(home.get(tenancyPath+"workspaces/one"), "status", "phase") == "Ready"
	})
	made.create(configMaps, `{"metadata":{"name":"left"}}`)
	user := home.as("user-1-token")
	all, in := user.typeView("terminating", "apps", "*"), user.typeView("terminating", "apps", made.cluster)
	all.eventually("the view opens", func() bool {
		code, _ := all.status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
		return code == http.StatusOK
	})
	require.Empty(t, field(all.get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"), "nothing is deleted")
	code, says := in.status(http.MethodGet, configMaps+"/left", "")
	require.Equal(t, http.StatusForbidden, code, says)
	w := all.follow(schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}, "")

	home.ask(http.StatusOK, http.MethodDelete, tenancyPath+"workspaces/one", "")
	waiting := next(t, w, watch.Added, "cluster")
	require.NotNil(t, waiting.GetDeletionTimestamp())
	in.ask(http.StatusOK, http.MethodDelete, configMaps+"/left", "")
	in.ask(http.StatusUnprocessableEntity, http.MethodPatch, ownLC+"/status", `{"status":{"terminators":["other"]}}`)
	in.ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"terminators":null}}`)
	home.eventually("the workspace is gone", func() bool {
		code, _ := home.status(http.MethodGet, tenancyPath+"workspaces/one", "")
		return code == http.StatusNotFound
	})
	next(t, w, watch.Deleted, "cluster")
}
