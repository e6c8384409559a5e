package integration

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// TestHomesSurviveCrashes: wherever root's shard is killed while it makes a home, there is
// one in the end, and one only.
func TestHomesSurviveCrashes(t *testing.T) {
	t.Parallel()
	e := start(t, harness.Options{Mode: harness.Processes, Shards: 2, DevTokens: true})
	root := e.Component("root")
	for n := range 4 {
		config := withToken(e.Proxy(), fmt.Sprintf("user-%d-token", n+1))
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _, _ = send(t.Context(), config, call{path: homePath}) // what becomes of it is open
		}()
		<-time.After(time.Duration(n) * 15 * time.Millisecond) // somewhere on the way
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
