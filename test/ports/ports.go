// Package ports has ports for servers that tests stop and start again.
package ports

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Free returns the first of n consecutive ports that are free, and that no other
// caller gets until the test ends, in whatever process: what is down, or not up yet, keeps
// its port. Ports are given in blocks, each of which belongs to who listens on its first.
// They are not among those that systems give to outgoing connections: while a server
// is down, one of those would take its port, a client's attempt to reach it even.
func Free(t testing.TB, n int) int {
	t.Helper()
	const lowest, highest, block = 12000, 32000, 20
	require.Less(t, n, block)
	for range 1000 {
		first := lowest + block*rand.IntN((highest-lowest)/block)
		owned, err := listen(t.Context(), first)
		if err != nil {
			continue
		}
		if allFree(t.Context(), first+1, n) {
			t.Cleanup(func() { _ = owned.Close() })
			return first + 1
		}
		_ = owned.Close()
	}
	t.Fatalf("found no %d consecutive free ports", n)
	return 0
}

func allFree(ctx context.Context, base, n int) bool {
	for port := base; port < base+n; port++ {
		l, err := listen(ctx, port)
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
}
