package access

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestShardsReadEachOther: with the certificate of a shard, which all of the tests here use,
// others can be read and asked, and not be written to.
func TestShardsReadEachOther(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	shard := rest.AnonymousClientConfig(e.Shard(0))
	shard.CertFile = filepath.Join(e.Dir, ".kcp", "shard-client-shard-1.crt")
	shard.KeyFile = filepath.Join(e.Dir, ".kcp", "shard-client-shard-1.key")
	require.Equal(t, "system:shard:shard-1", kit.WhoAmI(t, shard, "root").Username)
	home := e.WorkspaceOn("root", "read-only", "root").Spec.Cluster
	const (
		configMaps = "/api/v1/namespaces/default/configmaps"
		clusters   = "/apis/core.kcp.io/v1alpha1/logicalclusters"
		shards     = "/apis/core.kcp.io/v1alpha1/shards"
		leases     = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
		reviews    = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	)
	e.Eventually("they say so that they live", func() bool {
		own, _ := kit.Do(t, shard, kit.Request{Path: "/clusters/root" + leases + "/shard-shard-1"})
		other, _ := kit.Do(t, shard, kit.Request{Path: "/clusters/root" + leases + "/shard-root"})
		return own == http.StatusOK && other == http.StatusOK
	})
	lease := func(name string) string {
		return `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + name + `"}}`
	}
	for _, tc := range []struct {
		kit.Request
		in   string
		want int
	}{
		{kit.Request{Path: configMaps}, home, http.StatusOK},
		{kit.Request{Path: "/api/v1/secrets"}, "*", http.StatusOK},
		{kit.Request{Path: clusters + "/cluster"}, home, http.StatusOK},
		{kit.Request{Method: http.MethodPost, Path: configMaps, Body: `{"metadata":{"name":"x"}}`}, home, http.StatusForbidden},
		{kit.Request{Method: http.MethodPost, Path: clusters, Body: `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"}}`}, "new", http.StatusForbidden},
		{kit.Request{Method: http.MethodDelete, Path: clusters + "/cluster"}, home, http.StatusForbidden},
		{kit.Request{Method: http.MethodDelete, Path: "/apis/tenancy.kcp.io/v1alpha1/workspaces/read-only"}, "root", http.StatusForbidden},
		{kit.Request{Method: http.MethodPost, Path: reviews, Body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"a","nonResourceAttributes":{"verb":"access","path":"/"}}}`}, home, http.StatusCreated},
		{kit.Request{Method: http.MethodPatch, Path: shards + "/root", Body: `{"metadata":{"labels":{"a":"b"}}}`}, "root", http.StatusForbidden},
		{kit.Request{Method: http.MethodPatch, Path: shards + "/shard-1", Body: `{"metadata":{"annotations":{"a":"b"}}}`}, "root", http.StatusOK},
		{kit.Request{Method: http.MethodDelete, Path: shards + "/shard-1"}, "root", http.StatusForbidden},
		{kit.Request{Method: http.MethodPost, Path: leases, Body: lease("shard-root-2")}, "root", http.StatusForbidden},
		{kit.Request{Method: http.MethodPatch, Path: leases + "/shard-root", Body: `{"spec":{"holderIdentity":"x"}}`}, "root", http.StatusForbidden},
		{kit.Request{Path: "/metrics"}, "", http.StatusForbidden},
		{kit.Request{Path: "/placement"}, "", http.StatusOK},
	} {
		if tc.in != "" {
			tc.Path = "/clusters/" + tc.in + tc.Path
		}
		tc.Header = http.Header{"Content-Type": {"application/json"}}
		if tc.Method == http.MethodPatch {
			tc.Header.Set("Content-Type", string(kit.MergePatch))
		}
		code, body := kit.Do(t, shard, tc.Request)
		require.Equal(t, tc.want, code, "%s %s: %s", tc.Method, tc.Path, body)
	}
	// The front-proxy passes the group on to nobody.
	require.NotContains(t, kit.WhoAmI(t, kit.AtHost(shard, e.Proxy().Host), "root").Groups, "system:kcp:shards")
}
