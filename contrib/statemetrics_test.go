package contrib_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// exported contains series of a replica of state-metrics: the names of logical clusters, and the number of namespaces.
type exported struct {
	clusters   map[string]bool
	namespaces int
}

func exportedBy(r *replica) (exported, error) {
	e := exported{clusters: map[string]bool{}}
	served, err := r.metrics("state-metrics")
	for _, family := range served["state-metrics"] {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range m.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			switch {
			case family.GetName() == "shardplane_state_object_info" && labels["resource"] == "logicalclusters.core.kcp.io":
				e.clusters[labels["logical_cluster"]] = true
			case family.GetName() == "shardplane_state_objects" && labels["resource"] == "namespaces":
				e.namespaces += int(m.GetGauge().GetValue())
			}
		}
	}
	return e, err
}

// complete returns nil if the replicas together export all objects exactly once, and each exports some.
func complete(ctx context.Context, proxy *client.Factory, replicas ...*replica) error {
	clusters, err := tenants(ctx, kinds.LogicalClusters.In(proxy.Wildcard()))
	if err != nil {
		return err
	}
	namespaces, err := tenants(ctx, kinds.Namespaces.In(proxy.Wildcard()))
	if err != nil {
		return err
	}
	by := map[string]string{}
	counted := 0
	for _, r := range replicas {
		e, err := exportedBy(r)
		if err != nil {
			return err
		}
		if e.namespaces == 0 {
			return fmt.Errorf("%s exports nothing", r.name)
		}
		counted += e.namespaces
		for name := range e.clusters {
			if by[name] != "" {
				return fmt.Errorf("%s and %s export %s", by[name], r.name, name)
			}
			by[name] = r.name
		}
	}
	if len(by) != clusters || counted != namespaces {
		return fmt.Errorf("%d logical clusters of %d, %d namespaces of %d", len(by), clusters, counted, namespaces)
	}
	return nil
}

// tenants returns the number of objects outside of system logical clusters.
func tenants[T client.Object, L runtime.Object](ctx context.Context, of *client.Client[T, L]) (int, error) {
	list, err := of.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	n := 0
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		if !strings.HasPrefix(logicalcluster.From(obj.(client.Object)).String(), "system:") { //nolint:forcetypeassert // it is of T
			n++
		}
		return nil
	})
	return n, err
}

// doubled returns an error if two replicas export the same logical cluster at the same time, i.e. each before and after a request to the
// other.
func doubled(replicas ...*replica) error {
	var rounds [2][]exported
	for i := range rounds {
		for _, r := range replicas {
			e, _ := exportedBy(r) // a killed replica exports nothing
			rounds[i] = append(rounds[i], e)
		}
	}
	had := map[string]string{}
	for i, r := range replicas {
		for name := range rounds[0][i].clusters {
			if rounds[1][i].clusters[name] {
				if had[name] != "" {
					return fmt.Errorf("%s and %s export %s", had[name], r.name, name)
				}
				had[name] = r.name
			}
		}
	}
	return nil
}

// TestStateMetrics checks replicas of the example that export objects of two shards, while some of them are killed, stopped and started:
// no object is exported twice, and all are exported again after a short time.
func TestStateMetrics(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: builds, runs and restarts an example")
	}
	t.Parallel()
	cluster := two.Get(t)
	proxy := harness.NewFactory(t, cluster.Proxy())
	for n := range 8 {
		harness.Workspace(t, proxy, "root", fmt.Sprint("state-", n), []string{"root", "shard-1"}[n%2])
	}
	begin := func(name string) *replica {
		return start(t, "state-metrics", name, "--kubeconfig="+cluster.Kubeconfig())
	}
	wait := func(what string, replicas ...*replica) {
		t.Helper()
		eventually(t, what, func() error { return complete(t.Context(), proxy, replicas...) })
	}
	one, two, three := begin("one"), begin("two"), begin("three")
	watching, stop := context.WithCancel(t.Context())
	var watched sync.WaitGroup
	t.Cleanup(watched.Wait)
	t.Cleanup(stop)
	watched.Go(func() {
		for watching.Err() == nil {
			if err := doubled(one, two, three); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wait("three replicas export all objects", one, two, three)
	dashboardIsServed(t, "state-metrics", one, two, three)
	divided(t, "each replica has a third", one, two, three)
	for _, path := range []string{"/healthz", "/readyz"} {
		_, err := one.get(path)
		require.NoError(t, err, path)
	}
	two.kill()
	wait("two replicas take over from a killed one", one, three)
	one.stop()
	wait("one replica takes over from a stopped one", three)
	stop()
	watched.Wait()
	alone := start(t, "state-metrics", "alone", "--kubeconfig="+cluster.ShardKubeconfig(1), "--ring-cluster=system:admin")
	four := begin("four")
	wait("a new replica exports its share", three, four)
	eventually(t, "a replica that uses one shard exports its objects", func() error {
		e, err := exportedBy(alone)
		if err == nil && len(e.clusters) < 4 {
			err = fmt.Errorf("it exports %d logical clusters", len(e.clusters))
		}
		return err
	})
}
