package integration

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
)

const (
	tenancyPath = "/apis/tenancy.kcp.io/v1alpha1/"
	ownLC       = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
)

var logicalClustersResource = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}

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
	t.Run("URLs", func(t *testing.T) { testTypeURLs(t, e, newAPIKinds(e, "urls-home").in(t)) })
	for name, shard := range map[string]int{"of a type here": 0, "of a type on another shard": 1} {
		t.Run("initializing "+name, func(t *testing.T) {
			testInitializing(t, newAPIKindsOn(e, fmt.Sprint("init-home-", shard), shard).in(t))
		})
		t.Run("terminating "+name, func(t *testing.T) {
			testTerminating(t, newAPIKindsOn(e, fmt.Sprint("term-home-", shard), shard).in(t))
		})
		t.Run("policies, with exports and types "+strings.TrimPrefix(name, "of a type "), func(t *testing.T) {
			testPolicyInTypeViews(t, newAPIKindsOn(e, fmt.Sprint("policy-home-", shard), shard).in(t))
		})
	}
}

// initialized makes the type apps, which has an initializer.
func (k apiKinds) initialized() {
	k.t.Helper()
	k.create(tenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
}

// at is what is seen on a shard, wherever the logical cluster is.
func (k apiKinds) at(shard int) apiKinds {
	k.config = k.Shard(shard)
	return k
}

// withGroups is somebody whose certificate says that these groups have them.
func (k apiKinds) withGroups(groups ...string) apiKinds {
	k.t.Helper()
	ca, err := pki.NewStore(filepath.Join(k.Dir, ".kcp"), time.Now).Authority("client-ca")
	require.NoError(k.t, err)
	pair, err := pki.NewStore(k.t.TempDir(), time.Now).Certificate("member", ca, pki.Client("member", groups...))
	require.NoError(k.t, err)
	k.config = withPair(k.config, pair)
	return k
}

// workspaceOf makes a workspace of a type on a shard, and returns its logical cluster, as an
// administrator sees it there, once it exists.
func (k apiKinds) workspaceOf(name, typeName string, shard int) apiKinds {
	k.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":{"name":%q},"location":{"selector":{"matchLabels":{"name":%q}}}}}`, name, typeName, []string{"root", "shard-1"}[shard])
	k.eventually("it is made", func() bool { // the type may not be known yet
		code, says := k.status(http.MethodPost, tenancyPath+"workspaces", body)
		require.Contains(k.t, []int{http.StatusCreated, http.StatusForbidden}, code, says)
		return code == http.StatusCreated
	})
	made := k
	made.config = k.Shard(shard)
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

// testInitializing: home has the type, and the workspace is on shard root.
func testInitializing(t *testing.T, home apiKinds) {
	home.initialized()
	user := home.at(0).as("user-1-token")
	all := user.typeView("initializing", "apps", "*")
	code, says := all.status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, notPermitted)
	home.grant("apps", "initialize")
	all.eventually("the view opens", func() bool {
		code, _ := all.status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
		return code == http.StatusOK
	})
	w := all.follow(logicalClustersResource, "")
	home.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`)
	owner := home.as("user-2-token")
	owner.eventually("the owner may make workspaces", func() bool {
		code, _ := owner.status(http.MethodGet, tenancyPath+"workspaces", "")
		return code == http.StatusOK
	})
	made := owner.workspaceOf("one", "apps", 0)
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
	code, says = in.apply(configMaps+"/applied", configMap("applied"))
	require.Equal(t, http.StatusCreated, code, says)
	require.Contains(t, fmt.Sprint(in.get("/apis").Object), "tenancy.kcp.io")
	code, says = made.as("user-1-token").status(http.MethodGet, configMaps+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// By the permissions that the type declares, in a group that says why.
	home.ask(http.StatusOK, http.MethodPatch, tenancyPath+"workspacetypes/apps", `{"spec":{"initializerPermissions":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get","patch"]},{"apiGroups":[""],"resources":["secrets"],"verbs":["create","patch"]},{"apiGroups":["authentication.k8s.io"],"resources":["selfsubjectreviews"],"verbs":["create"]}]}}`)
	in.eventually("only what is declared may be done", func() bool {
		code, _ := in.status(http.MethodPost, configMaps, `{"metadata":{"name":"more"}}`)
		return code == http.StatusForbidden
	})
	in.get(configMaps + "/made")
	code, says = in.apply(configMaps+"/other", configMap("other"))
	require.Equal(t, http.StatusForbidden, code, says)
	code, says = in.apply("/api/v1/namespaces/default/secrets/applied", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"applied"}}`)
	require.Equal(t, http.StatusCreated, code, says)
	group := "system:kcp:initializer:" + home.cluster + ":apps"
	review := in.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	require.Contains(t, field(review, "status", "userInfo", "groups"), group)
	testInitialized(t, home, made, w)
	testInitializersGroup(t, made, group)
}

// testInitializersGroup: outside of the view the group is nobody's to have: whoever claims it gets nothing by it, even
// what roles give it.
func testInitializersGroup(t *testing.T, made apiKinds, group string) {
	t.Helper()
	made.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"groups"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":%q},{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"devs"}]}`, group)
	devs := made.withGroups("devs")
	devs.eventually("the other group of the binding has the role", func() bool {
		code, _ := devs.status(http.MethodGet, configMaps+"/made", "")
		return code == http.StatusOK
	})
	code, says := made.withGroups(group).status(http.MethodGet, configMaps+"/made", "")
	require.Equal(t, http.StatusForbidden, code, says)
}

// testInitialized: the initializer goes, and with it what the view shows, on the open watch w, too.
func testInitialized(t *testing.T, home, made apiKinds, w watch.Interface) {
	t.Helper()
	user := home.at(0).as("user-1-token")
	in := user.typeView("initializing", "apps", made.cluster)
	// The LogicalCluster: this initializer goes, and nothing else changes.
	in.get(ownLC)
	code, says := in.status(http.MethodPut, ownLC, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	in.ask(http.StatusUnprocessableEntity, http.MethodPatch, ownLC+"/status", `{"status":{"initializers":["other"]}}`)
	in.ask(http.StatusUnprocessableEntity, http.MethodPatch, ownLC+"/status", `{"status":{"phase":"Ready"}}`)
	in.ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"conditions":[{"type":"Seen","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	in.ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"initializers":[]}}`)
	gone := next(t, w, watch.Deleted, "cluster")
	require.Equal(t, made.cluster, gone.GetAnnotations()["kcp.io/cluster"])
	require.Empty(t, field(user.typeView("initializing", "apps", "*").get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"))
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
}

// testTypeURLs: the type says where its views are, on each shard, and goes on saying so.
func testTypeURLs(t *testing.T, e *env, home apiKinds) {
	t.Helper()
	home.initialized()
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

// testTerminating: home has the type, and the workspace is on shard root.
func testTerminating(t *testing.T, home apiKinds) {
	home.create(tenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"terminator":true,"terminatorPermissions":[{"apiGroups":["","core.kcp.io"],"resources":["*"],"verbs":["*"]}]}}`)
	home.grant("apps", "terminate")
	made := home.workspaceOf("one", "apps", 0)
	home.eventually("the workspace is ready", func() bool {
		return field(home.get(tenancyPath+"workspaces/one"), "status", "phase") == "Ready"
	})
	made.create(configMaps, `{"metadata":{"name":"left"}}`)
	user := home.at(0).as("user-1-token")
	all, in := user.typeView("terminating", "apps", "*"), user.typeView("terminating", "apps", made.cluster)
	all.eventually("the view opens", func() bool {
		code, _ := all.status(http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters", "")
		return code == http.StatusOK
	})
	require.Empty(t, field(all.get("/apis/core.kcp.io/v1alpha1/logicalclusters"), "items"), "nothing is deleted")
	code, says := in.status(http.MethodGet, configMaps+"/left", "")
	require.Equal(t, http.StatusForbidden, code, says)
	w := all.follow(logicalClustersResource, "")

	home.ask(http.StatusOK, http.MethodDelete, tenancyPath+"workspaces/one", "")
	waiting := next(t, w, watch.Added, "cluster")
	require.NotNil(t, waiting.GetDeletionTimestamp())
	in.ask(http.StatusOK, http.MethodDelete, configMaps+"/left", "")
	code, says = in.apply(configMaps+"/applied", configMap("applied"))
	require.Equal(t, http.StatusCreated, code, says)
	in.ask(http.StatusUnprocessableEntity, http.MethodPatch, ownLC+"/status", `{"status":{"terminators":["other"]}}`)
	in.ask(http.StatusOK, http.MethodPatch, ownLC+"/status", `{"status":{"terminators":null}}`)
	home.eventually("the workspace is gone", func() bool {
		code, _ := home.status(http.MethodGet, tenancyPath+"workspaces/one", "")
		return code == http.StatusNotFound
	})
	next(t, w, watch.Deleted, "cluster")
}
