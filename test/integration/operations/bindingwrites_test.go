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

// writes are those in etcd of a few logical clusters, from when it was made or asked last.
type writes struct {
	t        *testing.T
	etcd     *clientv3.Client
	clusters []string
	revision int64
}

// until returns the keys that were written up to a revision, by resource and name.
func (w *writes) until(resourceVersion string) []string {
	w.t.Helper()
	last, err := strconv.ParseInt(resourceVersion, 10, 64)
	require.NoError(w.t, err)
	var written []string
	ctx, cancel := context.WithTimeout(w.t.Context(), kit.Timeout)
	defer cancel()
	for answer := range w.etcd.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(w.revision+1)) {
		require.NoError(w.t, answer.Err())
		for _, event := range answer.Events {
			if w.revision = event.Kv.ModRevision; w.counts(string(event.Kv.Key)) {
				written = append(written, event.Type.String()+" "+keyName(string(event.Kv.Key)))
				w.t.Logf("%s %s: %s", event.Type, event.Kv.Key, event.Kv.Value) // which of them it was, and what it says now
			}
			if w.revision == last {
				return written
			}
		}
	}
	require.Fail(w.t, "etcd does not tell of the last write")
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

// testBindingWrites: a binding of an export that others have bound takes three writes, and a claim
// that is accepted, or rejected, takes the binding's own two, however many objects it is for.
func testBindingWrites(t *testing.T, e *kit.Env, etcd *clientv3.Client) {
	provider, other, k := kit.NewWorkspaceClient(e, "writes-provider").ForTest(t), kit.NewWorkspaceClient(e, "writes-other").ForTest(t), kit.NewWorkspaceClient(e, "writes").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	other.Bind("e", provider, "e")
	other.UntilBinding("e", "Ready", "True <nil>")
	provider.Eventually("the first binding has had its effects elsewhere", func() bool {
		_, says := provider.TryDo(http.MethodGet, kit.APIsV1Alpha1+"apiexportendpointslices/e", "")
		return strings.Contains(says, `"url"`)
	})
	provider.Eventually("its logical cluster is marked for other shards", func() bool {
		_, says := provider.TryDo(http.MethodGet, kit.LogicalClusterPath, "")
		return strings.Contains(says, `"internal.kcp.io/replicate"`)
	})
	for _, in := range []kit.WorkspaceClient{provider, k} {
		for _, made := range []string{`"internal.shardplane.io/system-bindings":"true"`, `"tenancy.kcp.io/phase":"Ready"`} {
			in.Eventually("the workspace is all made", func() bool {
				_, says := in.TryDo(http.MethodGet, kit.LogicalClusterPath, "")
				return strings.Contains(says, made)
			})
		}
		namespaces := []string{"default", "kube-system"}
		if in.ClusterName == provider.ClusterName {
			namespaces = append(namespaces, "kcp-system") // which has the identity of its export
		}
		for _, namespace := range namespaces {
			for _, made := range []string{"configmaps/" + kit.RootCAConfigMap, "serviceaccounts/default"} {
				in.Eventually(made+" is in "+namespace, func() bool {
					code, _ := in.TryDo(http.MethodGet, "/api/v1/namespaces/"+namespace+"/"+made, "")
					return code == http.StatusOK
				})
			}
		}
	}
	const many = 40
	for n := range many {
		k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"cm-%d"}}`, n)
	}
	marks := 0
	mark := func() string {
		marks++
		return k.Create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"mark-%d"}}`, marks).GetResourceVersion()
	}
	w := &writes{t: t, etcd: etcd, clusters: []string{k.ClusterName, provider.ClusterName}}
	begin, err := strconv.ParseInt(mark(), 10, 64)
	require.NoError(t, err)
	w.revision = begin

	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	require.Equal(t, []string{"PUT apibindings/e", "PUT logicalclusters/cluster", "PUT apibindings/e", "PUT secrets/mark-2"}, w.until(mark()), "a binding is Ready")

	view := provider.ThroughExport("e", k.ClusterName)
	for _, step := range []struct {
		state string
		code  int
	}{{"Accepted", http.StatusOK}, {"Rejected", http.StatusForbidden}} {
		k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"` + step.state + `"}]`)
		view.Eventually("it has effect: "+step.state, func() bool {
			got, _ := view.TryDo(http.MethodGet, kit.ConfigMapsPath+"/cm-0", "")
			return got == step.code
		})
		end := mark()
		require.Equal(t, []string{"PUT apibindings/e", "PUT apibindings/e", fmt.Sprintf("PUT secrets/mark-%d", marks)}, w.until(end), "the claim is %s", step.state)
	}
}
