package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// TestUpgradePlacement upgrades two shards with logical clusters for each other's Workspaces, in either order, and downgrades one, while
// Workspaces are created and deleted.
func TestUpgradePlacement(t *testing.T) {
	previous := os.Getenv(harness.PreviousBinaryEnv)
	if previous == "" {
		t.Skip("requires the previous release: run make upgrade")
	}
	for _, order := range [][]string{{"root", "shard-1"}, {"shard-1", "root"}} {
		t.Run(order[0]+" first", func(t *testing.T) {
			c := harness.Start(t, harness.Options{
				Mode: harness.Processes, Binary: previous, Shards: 2, DevTokens: true, Fsync: true,
				ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=20ms"}},
			})
			u := &across{t: t, proxy: harness.NewFactory(t, c.Proxy())}
			workspace(t, u.proxy, "root", "there", "shard-1")
			u.works()
			replace := func(shard, binary string) {
				u.begin()
				c.Component(shard).Replace(binary)
				u.end()
				u.works()
			}
			replace(order[0], harness.Binary(t))
			replace(order[1], harness.Binary(t))
			replace(order[0], previous)
			replace(order[0], harness.Binary(t))
		})
	}
}

// across creates and deletes Workspaces with logical clusters on the other shard.
type across struct {
	t     *testing.T
	proxy *client.Factory
	// ready are Workspaces to delete, and making those to become Ready.
	ready, making []placed
	n             int
}

// placed is a Workspace below a path.
type placed struct{ parent, name string }

// works creates a Workspace in each direction, and deletes those of the previous step.
func (u *across) works() {
	u.t.Helper()
	u.begin()
	u.end()
}

// begin creates a Workspace on each shard, and deletes the Ready ones.
func (u *across) begin() {
	u.t.Helper()
	for parent, shard := range map[string]string{"root": "shard-1", "root:there": "root"} {
		u.n++
		ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%d", u.n)}}
		ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}}}
		harness.Create(u.t, kinds.Workspaces.In(u.proxy.Cluster(path(parent))), ws)
		u.making = append(u.making, placed{parent, ws.Name})
	}
	for _, ws := range u.ready {
		require.NoError(u.t, kinds.Workspaces.In(u.proxy.Cluster(path(ws.parent))).Delete(u.t.Context(), ws.name, metav1.DeleteOptions{}))
	}
}

// end waits until the Workspaces are Ready or deleted.
func (u *across) end() {
	u.t.Helper()
	for _, ws := range u.making {
		require.Eventually(u.t, func() bool {
			now, err := kinds.Workspaces.In(u.proxy.Cluster(path(ws.parent))).Get(u.t.Context(), ws.name, metav1.GetOptions{})
			return err == nil && now.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
		}, testTimeout, 10*time.Millisecond, "workspace %s:%s did not become Ready", ws.parent, ws.name)
	}
	for _, ws := range u.ready {
		require.Eventually(u.t, func() bool {
			_, err := kinds.Workspaces.In(u.proxy.Cluster(path(ws.parent))).Get(u.t.Context(), ws.name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, testTimeout, 10*time.Millisecond, "workspace %s:%s was not deleted", ws.parent, ws.name)
	}
	u.ready, u.making = u.making, nil
}
