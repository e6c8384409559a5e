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

// phases are the phases of a logical cluster, in order.
var phases = []corev1alpha1.LogicalClusterPhaseType{corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing, corev1alpha1.LogicalClusterPhaseReady}

// logicalClusters returns the phases of all logical clusters.
func logicalClusters(e *kit.Env) map[logicalcluster.Name]corev1alpha1.LogicalClusterPhaseType {
	e.T.Helper()
	found := map[logicalcluster.Name]corev1alpha1.LogicalClusterPhaseType{}
	for _, shard := range e.ShardClients {
		list := harness.List(e.T, kinds.LogicalClusters.In(shard.Wildcard()), metav1.ListOptions{})
		for i := range list.Items {
			found[logicalcluster.From(&list.Items[i])] = list.Items[i].Status.Phase
		}
	}
	return found
}

// TestHomesSurviveCrashes kills the shard of root at several stages of creating a home, and expects exactly one home afterwards.
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
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _, _ = kit.Send(t.Context(), config, kit.Request{Path: homePath}) // the result does not matter
		}()
		e.Eventually("the creation of the home has reached the stage", func() bool {
			select {
			case <-sent:
				return true
			default:
			}
			// Stage 0: nothing; 1: the logical cluster exists; then its phases.
			reached := 0
			for name, phase := range logicalClusters(e) {
				if _, old := before[name]; !old {
					reached = max(reached, 1+slices.Index(phases, phase))
				}
			}
			return reached >= n
		})
		root.Kill()
		<-sent
		root.Start()
		e.Eventually("the home is served", func() bool {
			code, _ := kit.Do(t, config, kit.Request{Path: homePath})
			return code == http.StatusOK
		})
		home := homeOf(e, config)
		count := 0
		for _, shard := range e.ShardClients {
			lc, err := kinds.LogicalClusters.In(shard.Cluster(kit.Path(home.Spec.Cluster))).Get(t.Context(), "cluster", metav1.GetOptions{})
			if err == nil {
				count++
				require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, lc.Status.Phase)
			}
		}
		require.Equal(t, 1, count)
	}
}
