package integration

import (
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/harness"
)

func TestFirst(t *testing.T) {
	c := harness.Start(t, harness.Options{Shards: 2})
	clients, err := client.NewFactory(c.Proxy())
	require.NoError(t, err)
	root := clients.Cluster(logicalcluster.NewPath("root"))
	began := time.Now()
	ws, err := client.Workspaces.In(root).Create(t.Context(), &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		ws, err = client.Workspaces.In(root).Get(t.Context(), "one", metav1.GetOptions{})
		require.NoError(t, err)
		return ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	}, 20*time.Second, 5*time.Millisecond)
	t.Log(time.Since(began), ws)
	one := clients.Cluster(logicalcluster.NewPath("root:one"))
	ns, err := client.Namespaces.In(one).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	t.Log(ns.Items)
}
