package relay

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
	"github.com/shardplane/shardplane/test/background"
)

// checkpointsOf returns the checkpoints on a cache server, of shards with the cache servers that their replicas passed.
func checkpointsOf(t *testing.T, via map[string][]string) *client.Informer[*replicationcheckpoints.ReplicationCheckpoint] {
	t.Helper()
	list := replicationcheckpoints.ReplicationCheckpointList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	list.APIVersion, list.Kind = "cache.shardplane.io/v1alpha1", replicationcheckpoints.Kind+"List"
	for shard, via := range via {
		list.Items = append(list.Items, replicationcheckpoints.ReplicationCheckpoint{Via: via, ObjectMeta: metav1.ObjectMeta{
			Name: replicationcheckpoints.Name, Annotations: map[string]string{"kcp.io/cluster": replicationcheckpoints.Cluster.String(), request.ShardAnnotation: shard},
		}})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case query.Get("watch") != "":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(list)
		}
	}))
	t.Cleanup(server.Close)
	f := factoryOf(t, server)
	checkpoints := replicationcheckpoints.Checkpoints.Informer(f.Shard(request.Wildcard).Wildcard(), client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{})
	background.Run(t.Context(), t, checkpoints.Run)
	require.Eventually(t, checkpoints.HasSynced, 30*time.Second, 10*time.Millisecond)
	return checkpoints
}

// TestRoutes: replicas of a shard come by the shortest route, not by a cache server twice, nor by too many, and not at
// all if the shard pushes here itself.
func TestRoutes(t *testing.T) {
	t.Parallel()
	near := &source{From: From{Name: "near"}, metrics: newMetrics(nil), known: true, checkpoints: checkpointsOf(t, map[string][]string{
		"neighbor": nil, "own": nil, "relayed": {"far"}, "returns": {"eu"}, "loops": {"near", "far"}, "third": {"a", "b"}, "fourth": {"a", "b", "c"},
	})}
	far := &source{From: From{Name: "far"}, metrics: newMetrics(nil), known: true, checkpoints: checkpointsOf(t, map[string][]string{"relayed": nil, "neighbor": {"near"}})}
	unknown := &source{From: From{Name: "unknown"}, metrics: newMetrics(nil), checkpoints: checkpointsOf(t, map[string][]string{"other": nil})}
	r := &Relays{self: Self{Name: "eu"}, logged: map[string]struct{}{}, sources: []*source{near, far, unknown}, checkpoints: checkpointsOf(t, map[string][]string{"own": nil, "third": {"x"}})}
	routes := map[string][][]string{}
	for shard, all := range r.routes(t.Context()) {
		for _, w := range all {
			require.Equal(t, w.source.Name, w.via[len(w.via)-1])
			routes[shard] = append(routes[shard], w.via)
		}
	}
	require.Equal(t, map[string][][]string{
		"neighbor": {{"near"}, {"near", "far"}}, "relayed": {{"far"}, {"far", "near"}}, "third": {{"a", "b", "near"}},
	}, routes)
}
