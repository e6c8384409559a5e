package access

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestStatusCodes checks examples of the status codes in the contract. TestStatusCodes of pkg/frontproxy, TestScopes of
// pkg/serving and TestScopeFilter of pkg/cacheserver cover all rows.
func TestStatusCodes(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	admin, masters := e.Proxy(), e.Shard(0)
	adminAtShard := kit.AtHost(admin, masters.Host)

	t.Run("front-proxy", func(t *testing.T) {
		status := kit.RequireStatus(t, admin, kit.Request{Path: "/clusters/root:nowhere/api/v1/namespaces"}, http.StatusForbidden)
		require.Contains(t, status.Message, "workspace access not permitted")
		kit.RequireStatus(t, admin, kit.Request{Path: "/nothing/here"}, http.StatusNotFound)
		kit.RequireStatus(t, kit.WithToken(admin, "wrong"), kit.Request{Path: "/clusters/root/api"}, http.StatusUnauthorized)
		for _, path := range []string{"/readyz", "/livez", "/healthz"} {
			kit.RequireCode(t, kit.Anonymous(admin), kit.Request{Path: path}, http.StatusOK)
		}
		require.Contains(t, string(kit.RequireCode(t, admin, kit.Request{Path: "/metrics"}, http.StatusOK)), "# TYPE")
	})

	t.Run("metrics readers", func(t *testing.T) {
		reader, atShard, atSecond := kit.WithToken(admin, "user-1-token"), kit.WithToken(masters, "user-1-token"), kit.WithToken(e.Shard(1), "user-1-token")
		bindings := kinds.ClusterRoleBindings.In(e.ProxyClient.Cluster(kit.Path("root")))
		harness.Create(t, bindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kcp:metrics-reader"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "user-1"}},
		})
		for _, server := range []*rest.Config{reader, atShard, atSecond} {
			e.Eventually("the reader is authorized", func() bool {
				code, body := kit.Do(t, server, kit.Request{Path: "/metrics"})
				return code == http.StatusOK && strings.Contains(string(body), "# TYPE")
			})
			kit.RequireStatus(t, server, kit.Request{Path: "/debug/pprof/heap"}, http.StatusForbidden)
			kit.RequireStatus(t, server, kit.Request{Path: "/clusters/root/metrics"}, http.StatusNotImplemented)
			kit.RequireStatus(t, kit.WithToken(server, "user-2-token"), kit.Request{Path: "/metrics"}, http.StatusForbidden)
		}
		require.NoError(t, bindings.Delete(t.Context(), "metrics", metav1.DeleteOptions{}))
		for _, server := range []*rest.Config{reader, atShard, atSecond} {
			e.Eventually("the reader is not authorized any more", func() bool { return codeOf(t, server, "/metrics") == http.StatusForbidden })
		}
	})

	t.Run("profiles", func(t *testing.T) {
		for _, server := range []*rest.Config{admin, adminAtShard, masters, e.Cache()} {
			body := kit.RequireCode(t, server, kit.Request{Path: "/debug/pprof/goroutine?debug=1"}, http.StatusOK)
			require.Contains(t, string(body), "goroutine profile")
		}
		kit.RequireStatus(t, kit.WithToken(admin, "user-1-token"), kit.Request{Path: "/debug/pprof/heap"}, http.StatusForbidden)
		kit.RequireStatus(t, kit.WithToken(masters, "user-1-token"), kit.Request{Path: "/debug/pprof/heap"}, http.StatusForbidden)
		kit.RequireStatus(t, kit.Anonymous(e.Cache()), kit.Request{Path: "/debug/pprof/heap"}, http.StatusForbidden)
		kit.RequireStatus(t, masters, kit.Request{Path: "/clusters/root/debug/pprof/heap"}, http.StatusNotImplemented)
	})

	t.Run("shard", func(t *testing.T) {
		status := kit.RequireStatus(t, masters, kit.Request{Path: "/clusters/root:nowhere/api/v1/namespaces"}, http.StatusNotFound)
		require.Equal(t, "tenancy.kcp.io", status.Details.Group)
		require.Equal(t, "workspaces", status.Details.Kind)
		kit.RequireStatus(t, masters, kit.Request{Path: "/api/v1/namespaces"}, http.StatusBadRequest)
		kit.RequireStatus(t, adminAtShard, kit.Request{Path: "/clusters/nowhere/api/v1/namespaces"}, http.StatusForbidden)
		kit.RequireStatus(t, adminAtShard, kit.Request{Path: "/clusters/*/api/v1/namespaces"}, http.StatusForbidden)
		kit.RequireStatus(t, kit.Anonymous(masters), kit.Request{Path: "/clusters/root/api/v1/namespaces"}, http.StatusUnauthorized)

		body := kit.RequireCode(t, masters, kit.Request{Path: "/clusters/nowhere/api/v1/namespaces"}, http.StatusOK)
		require.NotContains(t, string(body), `"name":`)
	})

	t.Run("wildcard", func(t *testing.T) {
		status := kit.RequireStatus(t, masters, kit.Request{Path: "/clusters/*/api/v1/namespaces/default"}, http.StatusMethodNotAllowed)
		require.Contains(t, status.Message, "`*` logical cluster")
		body := kit.RequireCode(t, masters, kit.Request{Path: "/clusters/*/api/v1/namespaces"}, http.StatusOK)
		require.Contains(t, string(body), `"kcp.io/cluster":"root"`)
	})

	t.Run("forged identity headers", func(t *testing.T) {
		forged := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
		ordinary := kit.WithToken(admin, "user-1-token")
		kit.RequireStatus(t, ordinary, kit.Request{Path: "/clusters/root/api/v1/namespaces", Header: forged}, http.StatusForbidden)
		kit.RequireStatus(t, kit.Anonymous(admin), kit.Request{Path: "/clusters/root/api/v1/namespaces", Header: forged}, http.StatusUnauthorized)
		kit.RequireStatus(t, kit.AtHost(ordinary, masters.Host), kit.Request{Path: "/clusters/root/api/v1/namespaces", Header: forged}, http.StatusForbidden)
		kit.RequireStatus(t, kit.Anonymous(masters), kit.Request{Path: "/clusters/root/api/v1/namespaces", Header: forged}, http.StatusUnauthorized)
	})

	t.Run("cache server", func(t *testing.T) {
		cache := e.Cache()
		for _, path := range []string{"/services/cache/clusters/root/apis", "/services/cache/shards/UPPER/clusters/root/apis", "/services/cache/shards//clusters/root/apis"} {
			kit.RequireStatus(t, cache, kit.Request{Path: path}, http.StatusBadRequest)
		}
		kit.RequireStatus(t, kit.AtHost(admin, cache.Host), kit.Request{Path: "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards"}, http.StatusForbidden)
		kit.RequireCode(t, cache, kit.Request{Path: "/services/cache/shards/root/clusters/root/metrics"}, http.StatusNotImplemented)
		kit.RequireCode(t, kit.Anonymous(cache), kit.Request{Path: "/readyz"}, http.StatusOK)
	})

	t.Run("inactive logical cluster", func(t *testing.T) {
		name := e.Workspace("root", "asleep").Spec.Cluster
		scope := shardOf(e, name).Cluster(kit.Path(name))
		_, err := kinds.LogicalClusters.In(scope).Patch(t.Context(), "cluster", kit.MergePatch,
			[]byte(`{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		e.Eventually("the logical cluster refuses requests", func() bool {
			code, _ := kit.Do(t, admin, kit.Request{Path: "/clusters/" + name + "/api/v1/namespaces"})
			return code == http.StatusForbidden
		})
		for _, open := range []string{"/openapi/v3", "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"} {
			kit.RequireCode(t, admin, kit.Request{Path: "/clusters/" + name + open}, http.StatusOK)
		}
		_, err = kinds.LogicalClusters.In(e.ProxyClient.Cluster(kit.Path(name))).Patch(t.Context(), "cluster", kit.MergePatch,
			[]byte(`{"metadata":{"annotations":{"core.kcp.io/inactive":null}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		e.Eventually("the logical cluster serves again", func() bool {
			code, _ := kit.Do(t, admin, kit.Request{Path: "/clusters/" + name + "/api/v1/namespaces"})
			return code == http.StatusOK
		})
	})
}
