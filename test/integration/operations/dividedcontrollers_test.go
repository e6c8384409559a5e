package operations

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestDividedControllers: the replicas of a shard divide a controller, and when one is killed the
// other one does its part.
func TestDividedControllers(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: waits for real leases of replicas to expire")
	}
	t.Parallel()
	e := kit.Start(t, harness.Options{Mode: harness.Processes, Replicas: 2})
	admin := e.ShardClients["root"].Cluster(kit.Path("system:admin"))
	owners := func() map[string]bool {
		owners := map[string]bool{}
		lease, err := kinds.Leases.InNamespace(admin, "default").Get(t.Context(), "shard-replicas", metav1.GetOptions{})
		if err != nil {
			return owners
		}
		for _, part := range strings.Split(lease.Annotations["ring.shardplane.io/table"], `"owner":"`)[1:] {
			owner, _, _ := strings.Cut(part, `"`)
			owners[owner] = true
		}
		return owners
	}
	const waits = 2 * time.Minute
	require.Eventually(t, func() bool { return len(owners()) == 2 }, waits, 50*time.Millisecond, "both replicas have a part")

	// Each workspace is another logical cluster; the accounts come from whoever has it.
	var before, after []client.Scope
	for n := range 8 {
		before = append(before, e.ShardClients["root"].Cluster(kit.Path(e.Workspace("root", fmt.Sprint("both", n)).Spec.Cluster)))
		after = append(after, e.ShardClients["root"].Cluster(kit.Path(e.Workspace("root", fmt.Sprint("alone", n)).Spec.Cluster)))
	}
	for _, in := range before {
		requireAccount(t, in, waits)
	}

	// Without a word: the ring has to find it.
	e.Component("root-replica-2").Kill()
	require.Eventually(t, func() bool { return len(owners()) == 1 }, waits, 50*time.Millisecond, "the other replica has all")
	for _, in := range after {
		requireAccount(t, in, waits)
	}
}

// requireAccount makes a namespace, and waits for its default account.
func requireAccount(t *testing.T, in client.Scope, waits time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := kinds.Namespaces.In(in).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err)
	}, waits, 20*time.Millisecond, "namespace team in %s", in)
	require.Eventually(t, func() bool {
		_, err := kinds.ServiceAccounts.InNamespace(in, "team").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	}, waits, 20*time.Millisecond, "the default account of namespace team in %s", in)
}
