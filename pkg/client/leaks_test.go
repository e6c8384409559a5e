package client_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/heap"
)

// TestRangesDoNotLeak changes the ranges of an informer, 100 times or CHANGES, and checks that no goroutines and
// memory are leaked.
func TestRangesDoNotLeak(t *testing.T) {
	heap.Skip(t)
	server, factory := newServer(t)
	for n := range 200 {
		server.Put(t, gvr, configMap(logicalcluster.Name(fmt.Sprint("c", n%50)), "default", fmt.Sprint("x", n)))
	}
	r := rand.New(rand.NewPCG(1, 2))
	some := func() client.Ranges {
		var all []client.Range
		for part := range uint64(8) {
			if r.IntN(2) == 0 {
				all = append(all, client.Range{First: part << 61, Last: part<<61 + 1<<61 - 1})
			}
		}
		ranges, err := client.NewRanges(client.ByCluster, all...)
		if err != nil { // of none
			return client.Ranges{}
		}
		return ranges
	}
	ranges := client.NewChangingRanges(some())
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Ranges: ranges})
	notified := map[client.Key]bool{}
	informer.AddEventHandler(client.Handler[*corev1.ConfigMap]{
		OnAdd:   func(obj *corev1.ConfigMap, _ bool) { notified[client.KeyOf(obj)] = true },
		OnLeave: func(obj *corev1.ConfigMap, _ client.Leave) { delete(notified, client.KeyOf(obj)) },
	})
	run(t, informer)
	changes := 100
	if n, err := strconv.Atoi(os.Getenv("CHANGES")); err == nil {
		changes = n
	}
	change := func(n int) {
		for range n {
			to := some()
			ranges.Set(to)
			eventually(t, func() bool { return informer.LoadedRanges().Equal(to) }, "the ranges are loaded")
		}
	}
	change(50)
	base, goroutines := heap.InUse(), runtime.NumGoroutine()
	change(changes)
	eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+5 }, "goroutines end")
	released := func() bool { return heap.InUse() < base+1<<20 } // takes several garbage collections
	require.Eventually(t, released, testTimeout, time.Second/4, "memory is released")
	runtime.KeepAlive(server)
}
