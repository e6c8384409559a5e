package operations

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// writes contains the writes of some logical clusters in etcd, since it was created or until was called.
type writes struct {
	t        *testing.T
	etcd     *clientv3.Client
	clusters []string
	revision int64
}

// until returns the written keys up to a revision, by resource and name.
func (w *writes) until(resourceVersion string) []string {
	w.t.Helper()
	last, err := strconv.ParseInt(resourceVersion, 10, 64)
	require.NoError(w.t, err)
	var written []string
	ctx, cancel := context.WithTimeout(w.t.Context(), kit.Timeout)
	defer cancel()
	for response := range w.etcd.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(w.revision+1)) {
		require.NoError(w.t, response.Err())
		for _, event := range response.Events {
			if w.revision = event.Kv.ModRevision; w.counts(string(event.Kv.Key)) {
				written = append(written, event.Type.String()+" "+keyName(string(event.Kv.Key)))
				w.t.Logf("%s %s: %s", event.Type, event.Kv.Key, event.Kv.Value)
			}
			if w.revision == last {
				return written
			}
		}
	}
	require.Fail(w.t, "etcd did not report the last write within "+kit.Timeout.String())
	return nil
}

func (w *writes) counts(key string) bool {
	for _, cluster := range w.clusters {
		if strings.Contains(key, "/"+cluster+"/") {
			return true
		}
	}
	return strings.Contains(key, "/boundschemas/")
}

// keyName returns the resource and the name in a key: /<prefix>/<group>/<resource>/…/<name>.
func keyName(key string) string {
	segments := strings.Split(key, "/")
	resource, _, _ := strings.Cut(segments[3], ":")
	return resource + "/" + segments[len(segments)-1]
}

// testBindingWrites checks that a binding of an export that is bound elsewhere takes three writes, and that accepting or rejecting a claim
// takes two writes of the binding, independent of the number of objects.
func testBindingWrites(t *testing.T, e *kit.Env, etcd *clientv3.Client) {
	provider, other, k := kit.NewWorkspaceClient(e, "writes-provider").ForTest(t), kit.NewWorkspaceClient(e, "writes-other").ForTest(t), kit.NewWorkspaceClient(e, "writes").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	other.BindReady("e", provider, "e")
	provider.UntilShows(kit.APIsV1Alpha1+"apiexportendpointslices/e", `"url"`)
	provider.UntilShows(kit.LogicalClusterPath, `"internal.kcp.io/replicate"`)
	for _, in := range []kit.WorkspaceClient{provider, k} {
		for _, made := range []string{`"internal.shardplane.io/system-bindings":"true"`, `"tenancy.kcp.io/phase":"Ready"`} {
			in.UntilShows(kit.LogicalClusterPath, made)
		}
		namespaces := []string{"default", "kube-system"}
		if in.ClusterName == provider.ClusterName {
			namespaces = append(namespaces, "kcp-system") // for the identity of its export
		}
		for _, namespace := range namespaces {
			for _, made := range []string{"configmaps/" + kit.RootCAConfigMap, "serviceaccounts/default"} {
				in.UntilCode(http.StatusOK, http.MethodGet, "/api/v1/namespaces/"+namespace+"/"+made, "")
			}
		}
	}
	const many = 40
	for n := range many {
		k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"cm-%d"}}`, n)
	}
	checkpoints := 0
	checkpoint := func() string {
		checkpoints++
		return k.Create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"checkpoint-%d"}}`, checkpoints).GetResourceVersion()
	}
	w := &writes{t: t, etcd: etcd, clusters: []string{k.ClusterName, provider.ClusterName}}
	begin, err := strconv.ParseInt(checkpoint(), 10, 64)
	require.NoError(t, err)
	w.revision = begin

	k.BindReady("e", provider, "e")
	require.Equal(t, []string{"PUT apibindings/e", "PUT logicalclusters/cluster", "PUT apibindings/e", "PUT secrets/checkpoint-2"}, w.until(checkpoint()), "writes of a binding")

	vw := provider.ThroughExport("e", k.ClusterName)
	for _, step := range []struct {
		state string
		code  int
	}{{"Accepted", http.StatusOK}, {"Rejected", http.StatusForbidden}} {
		k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"` + step.state + `"}]`)
		vw.UntilCode(step.code, http.MethodGet, kit.ConfigMapsPath+"/cm-0", "")
		end := checkpoint()
		require.Equal(t, []string{"PUT apibindings/e", "PUT apibindings/e", fmt.Sprintf("PUT secrets/checkpoint-%d", checkpoints)}, w.until(end), "writes of a claim that is %s", step.state)
	}
}
