// Package ports reserves ports for servers that tests stop and start again.
package ports

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Free returns the first of n consecutive free ports. They are reserved until the test ends, also for
// other processes, so that a server keeps its port while it is stopped. Ports are reserved in blocks by
// a listener on the first port of the block. They are outside of the range for outgoing connections.
// Otherwise, a connection, e.g. of a client of the server, could use the port of a stopped server.
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
	t.Fatalf("no %d consecutive free ports were found", n)
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
