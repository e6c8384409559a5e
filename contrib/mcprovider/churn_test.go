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
)

// changes is how many logical clusters come and go.
func changes(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("CHANGES"))
	if err != nil {
		return 300
	}
	return n
}

// TestComeAndGo has logical clusters, with kinds of their own, come, be used and engaged, and go,
// while somebody still works in them: nothing is left of them, in memory or running.
func TestComeAndGo(t *testing.T) {
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		eventually(t, "all that was started has ended", func() bool { return goleak.Find(running) == nil })
	})
	s := newServers(t, 1)
	options := s.options()
	options.Config, options.ReadYourWrites = s.describing(t), true
	a := &awares{engaged: map[multicluster.ClusterName]bool{}}
	p, _ := start(t, options, a)
	const few = 50
	base, goroutines := uint64(0), 0
	for n := 0; n < changes(t); n += few {
		gone := comeAndGo(t, s, p, n, few)
		eventually(t, "none is engaged", func() bool { return len(a.names()) == 0 })
		use(t, gone)
		served, different, clients := p.Kept()
		require.Zero(t, served, "logical clusters of which it is kept what they serve")
		require.Zero(t, different, "mappings")
		require.Zero(t, clients, "clients")
		if n == few { // the first ones fill caches
			s[0].Compact()
			base, goroutines = heap(), runtime.NumGoroutine()
		}
	}
	s[0].Compact()
	eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	eventually(t, "memory comes back", func() bool { return heap() < base+2<<20 })
	runtime.KeepAlive(p)
}

// comeAndGo makes logical clusters, uses them, deletes them, and returns them as they were got.
func comeAndGo(t *testing.T, s servers, p *mcprovider.Provider, from, few int) []cluster.Cluster {
	t.Helper()
	var names []logicalcluster.Name
	for n := range few {
		names = append(names, logicalcluster.Name(fmt.Sprint("cluster", from+n)))
		s.cluster(t, 0, names[n])
		s.put(t, 0, names[n], "default", "a", "first")
	}
	var got []cluster.Cluster
	for _, name := range names {
		eventually(t, "it is there", func() bool {
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
	// Some are used while they go.
	var using sync.WaitGroup
	using.Go(func() { use(t, got) })
	for _, name := range names {
		s[0].Delete(t, kinds.ConfigMaps.GroupVersionResource, "", name, "default", "a")
		s[0].Delete(t, kinds.LogicalClusters.GroupVersionResource, "", name, "", corev1alpha1.LogicalClusterName)
	}
	using.Wait()
	eventually(t, "they are gone", func() bool {
		_, err := p.Get(t.Context(), multicluster.ClusterName(names[few-1]))
		return err != nil
	})
	return got
}

// use reads in logical clusters, and asks what they serve.
func use(t *testing.T, clusters []cluster.Cluster) {
	t.Helper()
	for _, c := range clusters {
		_ = c.GetClient().Get(t.Context(), ctrlclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{})
		if _, err := c.GetRESTMapper().RESTMapping(schema.GroupKind{Kind: "ConfigMap"}, "v1"); err != nil {
			t.Error(err)
		}
	}
}
