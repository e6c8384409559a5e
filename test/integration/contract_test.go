package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestStatusCodes holds every row of the contract's table of status codes that
// a cluster in its ordinary state can show.
func TestStatusCodes(t *testing.T) {
	c := two.Get(t)
	admin, masters := c.Proxy(), c.Shard(0)
	adminAtShard := at(admin, masters.Host)

	t.Run("front-proxy", func(t *testing.T) {
		for name, path := range map[string]string{
			"unknown name":  "/clusters/nowhere/api/v1/namespaces",
			"unknown path":  "/clusters/root:nowhere/api/v1/namespaces",
			"invalid":       "/clusters/UPPER/api/v1/namespaces",
			"encoded slash": "/clusters/root%2F..%2Fother/api/v1/namespaces",
		} {
			t.Run(name, func(t *testing.T) {
				status := refused(t, admin, call{path: path}, http.StatusForbidden)
				require.Contains(t, status.Message, "workspace access not permitted")
			})
		}
		status := refused(t, withToken(admin, "user-1-token"), call{path: "/clusters/*/api/v1/namespaces"}, http.StatusForbidden)
		require.Contains(t, status.Message, "workspace access not permitted")
		refused(t, admin, call{path: "/nothing/here"}, http.StatusNotFound)
		refused(t, withToken(admin, "wrong"), call{path: "/clusters/root/api"}, http.StatusUnauthorized)
		refused(t, nobody(admin), call{path: "/clusters/root/api"}, http.StatusUnauthorized)
		refused(t, withToken(admin, "user-1-token"), call{path: "/metrics"}, http.StatusForbidden)
		for _, path := range []string{"/readyz", "/livez", "/healthz"} {
			code, body := do(t, nobody(admin), call{path: path})
			require.Equal(t, http.StatusOK, code, "%s: %s", path, body)
		}
		code, body := do(t, admin, call{path: "/metrics"})
		require.Equal(t, http.StatusOK, code)
		require.Contains(t, string(body), "# TYPE")
	})

	t.Run("metrics for those whom root lets read them", func(t *testing.T) {
		e := newEnv(t, c)
		reader, atShard, atSecond := withToken(admin, "user-1-token"), withToken(masters, "user-1-token"), withToken(c.Shard(1), "user-1-token")
		bindings := kinds.ClusterRoleBindings.In(e.proxy.Cluster(path("root")))
		_, err := bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kcp:metrics-reader"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "user-1"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		for _, server := range []*rest.Config{reader, atShard, atSecond} {
			e.eventually("the reader may read", func() bool {
				code, body := do(t, server, call{path: "/metrics"})
				return code == http.StatusOK && strings.Contains(string(body), "# TYPE")
			})
			refused(t, server, call{path: "/debug/pprof/heap"}, http.StatusForbidden)
			refused(t, server, call{path: "/clusters/root/metrics"}, http.StatusNotImplemented)
			refused(t, withToken(server, "user-2-token"), call{path: "/metrics"}, http.StatusForbidden)
		}
		require.NoError(t, bindings.Delete(t.Context(), "metrics", metav1.DeleteOptions{}))
		for _, server := range []*rest.Config{reader, atShard, atSecond} {
			e.eventually("and then no more", func() bool {
				code, _ := do(t, server, call{path: "/metrics"})
				return code == http.StatusForbidden
			})
		}
	})

	t.Run("nobody has metrics of a logical cluster", func(t *testing.T) {
		for _, server := range []*rest.Config{admin, adminAtShard, masters, withToken(admin, "user-5-token"), withToken(masters, "user-5-token")} {
			for _, cluster := range []string{"root", "root:nowhere", "0123456789abcdef"} {
				refused(t, server, call{path: "/clusters/" + cluster + "/metrics"}, http.StatusNotImplemented)
			}
		}
	})

	t.Run("profiles", func(t *testing.T) {
		for _, server := range []*rest.Config{admin, adminAtShard, masters, c.Cache()} {
			code, body := do(t, server, call{path: "/debug/pprof/goroutine?debug=1"})
			require.Equal(t, http.StatusOK, code)
			require.Contains(t, string(body), "goroutine profile")
		}
		refused(t, withToken(admin, "user-1-token"), call{path: "/debug/pprof/heap"}, http.StatusForbidden)
		refused(t, withToken(masters, "user-1-token"), call{path: "/debug/pprof/heap"}, http.StatusForbidden)
		refused(t, nobody(c.Cache()), call{path: "/debug/pprof/heap"}, http.StatusForbidden)
		refused(t, masters, call{path: "/clusters/root/debug/pprof/heap"}, http.StatusNotImplemented)
	})

	t.Run("shard", func(t *testing.T) {
		status := refused(t, masters, call{path: "/clusters/root:nowhere/api/v1/namespaces"}, http.StatusNotFound)
		require.Equal(t, "tenancy.kcp.io", status.Details.Group)
		require.Equal(t, "workspaces", status.Details.Kind)
		refused(t, masters, call{path: "/clusters/UPPER/api/v1/namespaces"}, http.StatusBadRequest)
		refused(t, masters, call{path: "/api/v1/namespaces"}, http.StatusBadRequest)
		refused(t, masters, call{path: "/clusters/root/metrics"}, http.StatusNotImplemented)
		refused(t, masters, call{path: "/clusters/root/clusters/root/api"}, http.StatusNotFound)
		refused(t, adminAtShard, call{path: "/clusters/nowhere/api/v1/namespaces"}, http.StatusForbidden)
		refused(t, adminAtShard, call{path: "/clusters/*/api/v1/namespaces"}, http.StatusForbidden)
		refused(t, nobody(masters), call{path: "/clusters/root/api/v1/namespaces"}, http.StatusUnauthorized)

		code, body := do(t, masters, call{path: "/clusters/nowhere/api/v1/namespaces"})
		require.Equal(t, http.StatusOK, code, "system:masters sees an unknown name as empty: %s", body)
		require.NotContains(t, string(body), `"name":`)
	})

	t.Run("wildcard", func(t *testing.T) {
		for name, c := range map[string]call{
			"get":              {path: "/clusters/*/api/v1/namespaces/default"},
			"create":           {method: http.MethodPost, path: "/clusters/*/api/v1/namespaces", body: `{"metadata":{"name":"x"}}`, header: http.Header{"Content-Type": {"application/json"}}},
			"update":           {method: http.MethodPut, path: "/clusters/*/api/v1/namespaces/default", body: `{}`, header: http.Header{"Content-Type": {"application/json"}}},
			"delete":           {method: http.MethodDelete, path: "/clusters/*/api/v1/namespaces/default"},
			"deletecollection": {method: http.MethodDelete, path: "/clusters/*/api/v1/namespaces/default/configmaps"},
			"no resource":      {path: "/clusters/*/version"},
		} {
			t.Run(name, func(t *testing.T) {
				status := refused(t, masters, c, http.StatusMethodNotAllowed)
				require.Contains(t, status.Message, "`*` logical cluster")
			})
		}
		code, body := do(t, masters, call{path: "/clusters/*/api/v1/namespaces"})
		require.Equal(t, http.StatusOK, code, "%s", body)
		require.Contains(t, string(body), `"kcp.io/cluster":"root"`)
	})

	t.Run("forged identity headers", func(t *testing.T) {
		forged := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
		ordinary := withToken(admin, "user-1-token")
		refused(t, ordinary, call{path: "/clusters/root/api/v1/namespaces", header: forged}, http.StatusForbidden)
		refused(t, nobody(admin), call{path: "/clusters/root/api/v1/namespaces", header: forged}, http.StatusUnauthorized)
		refused(t, at(ordinary, masters.Host), call{path: "/clusters/root/api/v1/namespaces", header: forged}, http.StatusForbidden)
		refused(t, nobody(masters), call{path: "/clusters/root/api/v1/namespaces", header: forged}, http.StatusUnauthorized)
	})

	t.Run("cache server", func(t *testing.T) {
		cache := c.Cache()
		for _, path := range []string{"/services/cache/clusters/root/apis", "/services/cache/shards/UPPER/clusters/root/apis", "/services/cache/shards//clusters/root/apis"} {
			refused(t, cache, call{path: path}, http.StatusBadRequest)
		}
		refused(t, at(admin, cache.Host), call{path: "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards"}, http.StatusForbidden)
		code, _ := do(t, cache, call{path: "/services/cache/shards/root/clusters/root/metrics"})
		require.Equal(t, http.StatusNotImplemented, code)
		code, _ = do(t, nobody(cache), call{path: "/readyz"})
		require.Equal(t, http.StatusOK, code)
	})

	t.Run("inactive logical cluster", func(t *testing.T) {
		e := newEnv(t, c)
		name := e.workspace("root", "asleep").Spec.Cluster
		scope := e.shardOf(name).Cluster(path(name))
		_, err := kinds.LogicalClusters.In(scope).Patch(t.Context(), "cluster", mergePatch,
			[]byte(`{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		e.eventually("the logical cluster refuses requests", func() bool {
			code, _ := do(t, admin, call{path: "/clusters/" + name + "/api/v1/namespaces"})
			return code == http.StatusForbidden
		})
		for _, open := range []string{"/openapi/v3", "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"} {
			code, body := do(t, admin, call{path: "/clusters/" + name + open})
			require.Equal(t, http.StatusOK, code, "%s: %s", open, body)
		}
		_, err = kinds.LogicalClusters.In(e.proxy.Cluster(path(name))).Patch(t.Context(), "cluster", mergePatch,
			[]byte(`{"metadata":{"annotations":{"core.kcp.io/inactive":null}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		e.eventually("the logical cluster serves again", func() bool {
			code, _ := do(t, admin, call{path: "/clusters/" + name + "/api/v1/namespaces"})
			return code == http.StatusOK
		})
	})
}
