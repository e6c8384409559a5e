package mcprovider_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/heap"
)

// changes returns the number of logical clusters that are created and deleted.
func changes(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("CHANGES"))
	if err != nil {
		return 300
	}
	return n
}

// TestLeaks creates, uses and engages logical clusters with separate kinds, and deletes them while they are used. Memory and goroutines
// must be released.
func TestLeaks(t *testing.T) {
	heap.Skip(t)
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		eventually(t, "all goroutines have ended", func() bool { return goleak.Find(running) == nil })
	})
	s := newServers(t, 1)
	options := s.options()
	options.Config, options.ReadYourWrites = s.describing(t), true
	a := &awares{engaged: map[multicluster.ClusterName]bool{}}
	p, _ := start(t, options, a)
	const few = 50
	base, goroutines := int64(0), 0
	for n := 0; n < changes(t); n += few {
		deleted := createAndDelete(t, s, p, n, few)
		eventually(t, "all logical clusters are disengaged", func() bool { return len(a.names()) == 0 })
		use(t, deleted)
		served, different, clients := p.Kept()
		require.Zero(t, served, "logical clusters with mappings")
		require.Zero(t, different, "mappings")
		require.Zero(t, clients, "clients")
		if n == few { // caches are filled by the first ones
			s[0].Compact()
			base, goroutines = heap.InUse(), runtime.NumGoroutine()
		}
	}
	s[0].Compact()
	eventually(t, "the number of goroutines decreases", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	eventually(t, "memory is released", func() bool { return heap.InUse() < base+2<<20 })
	runtime.KeepAlive(p)
}

// createAndDelete creates, uses and deletes logical clusters, and returns them.
func createAndDelete(t *testing.T, s servers, p *mcprovider.Provider, from, few int) []cluster.Cluster {
	t.Helper()
	var names []logicalcluster.Name
	for n := range few {
		names = append(names, logicalcluster.Name(fmt.Sprint("cluster", from+n)))
		s.cluster(t, 0, names[n])
		s.put(t, 0, names[n], "default", "a", "first")
	}
	var got []cluster.Cluster
	for _, name := range names {
		eventually(t, "the logical cluster exists", func() bool {
			c, err := p.Get(t.Context(), multicluster.ClusterName(name))
			if err == nil {
				got = append(got, c)
			}
			return err == nil
		})
	}
	use(t, got)
	served, different, clients := p.Kept()
	require.Equal(t, []int{few, few, few}, []int{served, different, clients})
	// Some are used while they are deleted.
	var using sync.WaitGroup
	using.Go(func() { use(t, got) })
	for _, name := range names {
		s[0].Delete(t, kinds.ConfigMaps.GroupVersionResource, "", name, "default", "a")
		s[0].Delete(t, kinds.LogicalClusters.GroupVersionResource, "", name, "", corev1alpha1.LogicalClusterName)
	}
	using.Wait()
	eventually(t, "the logical clusters are deleted", func() bool {
		_, err := p.Get(t.Context(), multicluster.ClusterName(names[few-1]))
		return err != nil
	})
	return got
}

// use reads objects and discovers resources in logical clusters.
func use(t *testing.T, clusters []cluster.Cluster) {
	t.Helper()
	for _, c := range clusters {
		_ = c.GetClient().Get(t.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{})
		if _, err := c.GetRESTMapper().RESTMapping(schema.GroupKind{Kind: "ConfigMap"}, "v1"); err != nil {
			t.Error(err)
		}
	}
}
