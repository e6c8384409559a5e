package integration

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
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
	ctx, cancel := context.WithTimeout(w.t.Context(), testTimeout)
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
func testBindingWrites(t *testing.T, e *env, etcd *clientv3.Client) {
	provider, other, k := newAPIKinds(e, "writes-provider").in(t), newAPIKinds(e, "writes-other").in(t), newAPIKinds(e, "writes").in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.claim(`[` + claim + `}]`)
	other.bind("e", provider, "e")
	other.until("e", "Ready", "True <nil>")
	provider.eventually("the first binding has had its effects elsewhere", func() bool {
		_, says := provider.status(http.MethodGet, apisV1+"apiexportendpointslices/e", "")
		return strings.Contains(says, `"url"`)
	})
	provider.eventually("its logical cluster is marked for other shards", func() bool {
		_, says := provider.status(http.MethodGet, clusterItself, "")
		return strings.Contains(says, `"internal.kcp.io/replicate"`)
	})
	for _, in := range []apiKinds{provider, k} {
		for _, made := range []string{`"internal.shardplane.io/system-bindings":"true"`, `"tenancy.kcp.io/phase":"Ready"`} {
			in.eventually("the workspace is all made", func() bool {
				_, says := in.status(http.MethodGet, clusterItself, "")
				return strings.Contains(says, made)
			})
		}
		namespaces := []string{"default", "kube-system"}
		if in.cluster == provider.cluster {
			namespaces = append(namespaces, "kcp-system") // which has the identity of its export
		}
		for _, namespace := range namespaces {
			for _, made := range []string{"configmaps/" + rootCA, "serviceaccounts/default"} {
				in.eventually(made+" is in "+namespace, func() bool {
					code, _ := in.status(http.MethodGet, "/api/v1/namespaces/"+namespace+"/"+made, "")
					return code == http.StatusOK
				})
			}
		}
	}
	const many = 40
	for n := range many {
		k.create(configMaps, `{"metadata":{"name":"cm-%d"}}`, n)
	}
	marks := 0
	mark := func() string {
		marks++
		return k.create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"mark-%d"}}`, marks).GetResourceVersion()
	}
	w := &writes{t: t, etcd: etcd, clusters: []string{k.cluster, provider.cluster}}
	begin, err := strconv.ParseInt(mark(), 10, 64)
	require.NoError(t, err)
	w.revision = begin

	k.bind("e", provider, "e")
	k.until("e", "Ready", "True <nil>")
	require.Equal(t, []string{"PUT apibindings/e", "PUT logicalclusters/cluster", "PUT apibindings/e", "PUT secrets/mark-2"}, w.until(mark()), "a binding is Ready")

	view := provider.through("e", k.cluster)
	for _, step := range []struct {
		state string
		code  int
	}{{"Accepted", http.StatusOK}, {"Rejected", http.StatusForbidden}} {
		k.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"` + step.state + `"}]`)
		view.eventually("it has effect: "+step.state, func() bool {
			got, _ := view.status(http.MethodGet, configMaps+"/cm-0", "")
			return got == step.code
		})
		end := mark()
		require.Equal(t, []string{"PUT apibindings/e", "PUT apibindings/e", fmt.Sprintf("PUT secrets/mark-%d", marks)}, w.until(end), "the claim is %s", step.state)
	}
}
