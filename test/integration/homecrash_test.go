package integration

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
)

// phases are those of a logical cluster, in order.
var phases = []corev1alpha1.LogicalClusterPhaseType{corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing, corev1alpha1.LogicalClusterPhaseReady}

// logicalClusters returns the phases of all that can be listed.
func (e *env) logicalClusters() map[logicalcluster.Name]corev1alpha1.LogicalClusterPhaseType {
	e.t.Helper()
	found := map[logicalcluster.Name]corev1alpha1.LogicalClusterPhaseType{}
	for _, shard := range e.shards {
		list, err := kinds.LogicalClusters.In(shard.Wildcard()).List(e.t.Context(), metav1.ListOptions{})
		require.NoError(e.t, err)
		for i := range list.Items {
			found[logicalcluster.From(&list.Items[i])] = list.Items[i].Status.Phase
		}
	}
	return found
}

// TestHomesSurviveCrashes: wherever root's shard is killed while it makes a home, there is
// one in the end, and one only.
func TestHomesSurviveCrashes(t *testing.T) {
	t.Parallel()
	e := start(t, harness.Options{Mode: harness.Processes, Shards: 2, DevTokens: true})
	root := e.Component("root")
	for n := range 4 {
		config := withToken(e.Proxy(), fmt.Sprintf("user-%d-token", n+1))
		before := e.logicalClusters()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _, _ = send(t.Context(), config, call{path: homePath}) // what becomes of it is open
		}()
		e.eventually("the home is on the way", func() bool {
			select {
			case <-asked:
				return true
			default:
			}
			// First no logical cluster, then one that is there, and then its phases.
			come := 0
			for name, phase := range e.logicalClusters() {
				if _, old := before[name]; !old {
					come = max(come, 1+slices.Index(phases, phase))
				}
			}
			return come >= n
		})
		root.Kill()
		<-asked
		root.Start()
		e.eventually("there is a home", func() bool {
			code, _ := do(t, config, call{path: homePath})
			return code == http.StatusOK
		})
		home := e.home(config)
		held := 0
		for _, shard := range e.shards {
			lc, err := kinds.LogicalClusters.In(shard.Cluster(path(home.Spec.Cluster))).Get(t.Context(), "cluster", metav1.GetOptions{})
			if err == nil {
				held++
				require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, lc.Status.Phase)
			}
		}
		require.Equal(t, 1, held)
	}
}
