package shards_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/heap"
)

// TestShardsDoNotLeak adds, moves and removes shards, 50 times or CHANGES, and checks that no goroutines and memory
// are leaked.
func TestShardsDoNotLeak(t *testing.T) {
	heap.Skip(t)
	w := newWorld(t)
	server := clienttest.New(t, kinds.Scheme)
	other := alias(t, server)
	for n := range 100 {
		put(t, server, object(logicalcluster.Name(fmt.Sprint("c", n%20)), fmt.Sprint("x", n), "first"))
	}
	m, _ := startMulti(t, w.source, options{})
	changes := 50
	if n, err := strconv.Atoi(os.Getenv("CHANGES")); err == nil {
		changes = n
	}
	key := keyOf("c1", "x1")
	change := func(from, n int) {
		for i := range n {
			name := fmt.Sprint("shard-", from+i)
			w.announce(t, name, server.URL)
			has(t, m, key, name, "first")
			if i%4 == 0 {
				w.announce(t, name, other)
				eventually(t, func() bool { return len(m.Missing()) == 0 }, "the shard is read at the other address")
			}
			w.withdraw(t, name)
			eventually(t, func() bool { return m.Lister().Len() == 0 && m.Of(name) == nil }, "the shard is removed")
		}
		w.root.Compact()
	}
	change(0, 20)
	base, goroutines := heap.InUse(), runtime.NumGoroutine()
	change(20, changes)
	eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+5 }, "goroutines end")
	released := func() bool { return heap.InUse() < base+1<<20 } // takes several garbage collections
	require.Eventually(t, released, testTimeout, time.Second/4, "memory is released")
	runtime.KeepAlive(m)
}
