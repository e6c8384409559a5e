package access

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// phases are those of a logical cluster, in order.
var phases = []corev1alpha1.LogicalClusterPhaseType{corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing, corev1alpha1.LogicalClusterPhaseReady}

// logicalClusters returns the phases of all that can be listed.
func logicalClusters(e *kit.Env) map[logicalcluster.Name]corev1alpha1.LogicalClusterPhaseType {
	e.T.Helper()
	found := map[logicalcluster.Name]corev1alpha1.LogicalClusterPhaseType{}
	for _, shard := range e.ShardClients {
		list, err := kinds.LogicalClusters.In(shard.Wildcard()).List(e.T.Context(), metav1.ListOptions{})
		require.NoError(e.T, err)
		for i := range list.Items {
			found[logicalcluster.From(&list.Items[i])] = list.Items[i].Status.Phase
		}
	}
	return found
}

// TestHomesSurviveCrashes: wherever root's shard is killed while it makes a home, there is
// one in the end, and one only.
func TestHomesSurviveCrashes(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: kills processes")
	}
	t.Parallel()
	e := kit.Start(t, harness.Options{Mode: harness.Processes, Shards: 2, DevTokens: true})
	root := e.Component("root")
	for n := range 4 {
		config := kit.WithToken(e.Proxy(), fmt.Sprintf("user-%d-token", n+1))
		before := logicalClusters(e)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _, _ = kit.Send(t.Context(), config, kit.Request{Path: homePath}) // what becomes of it is open
		}()
		e.Eventually("the home is on the way", func() bool {
			select {
			case <-asked:
				return true
			default:
			}
			// First no logical cluster, then one that is there, and then its phases.
			come := 0
			for name, phase := range logicalClusters(e) {
				if _, old := before[name]; !old {
					come = max(come, 1+slices.Index(phases, phase))
				}
			}
			return come >= n
		})
		root.Kill()
		<-asked
		root.Start()
		e.Eventually("there is a home", func() bool {
			code, _ := kit.Do(t, config, kit.Request{Path: homePath})
			return code == http.StatusOK
		})
		home := homeOf(e, config)
		held := 0
		for _, shard := range e.ShardClients {
			lc, err := kinds.LogicalClusters.In(shard.Cluster(kit.Path(home.Spec.Cluster))).Get(t.Context(), "cluster", metav1.GetOptions{})
			if err == nil {
				held++
				require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, lc.Status.Phase)
			}
		}
		require.Equal(t, 1, held)
	}
}
