package frontproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAHangingShardIsTriedByOne holds that requests for a shard to which connections
// take too long are answered at once, while one of them finds out whether that is
// still so.
func TestAHangingShardIsTriedByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	w.ready(t)
	w.knows(t, "aaaa", "one")
	alice := w.person(t, "alice")
	require.Equal(t, "one", alice.echoed(t, "/clusters/aaaa/api").Shard)
	refused := func() {
		t.Helper()
		res, body := alice.get(t, "/clusters/aaaa/api")
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		require.Contains(t, body, "the workspace's shard is not reachable, try again")
	}
	one := w.proxy.shards.backend("one")
	one.Observe(t.Context(), false, context.DeadlineExceeded)
	refused()
	require.Eventually(t, one.Allow, timeout, time.Millisecond, "in a while somebody may try again")
	refused() // but nobody else meanwhile
	one.Done()
	require.Equal(t, "one", alice.echoed(t, "/clusters/aaaa/api").Shard, "who tried has left")
	require.True(t, one.Allow())
	require.True(t, one.Allow(), "it answers again")
	require.Equal(t, "root", alice.echoed(t, "/clusters/root/api").Shard)
}

// TestHangs holds that a shard is taken for one that hangs by nothing that is over
// at once, or that clients can cause.
func TestHangs(t *testing.T) {
	require.True(t, hangs(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}))
	require.False(t, hangs(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}))
	require.False(t, hangs(errors.New("net/http: invalid header field value")))
	require.False(t, hangs(io.ErrUnexpectedEOF))
}

// TestConnectionsOfAShardThatIsGone holds that a request which outlasts the Shard
// object is answered, and that no connection outlasts it.
func TestConnectionsOfAShardThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	inside, goOn := make(chan struct{}), make(chan struct{})
	shard := w.shards["one"]
	shard.handle(func(rw http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		<-goOn
		shard.echo(rw, r)
	})
	w.ready(t)
	w.knows(t, "aaaa", "one")
	answer := w.person(t, "alice").async(t, "/clusters/aaaa/api")
	<-inside
	require.Positive(t, shard.connections())

	w.withdraw(t, "one")
	require.Eventually(t, func() bool { return w.proxy.shards.backend("one") == nil }, timeout, time.Millisecond)
	close(goOn)
	require.Contains(t, <-answer, `"Shard":"one"`)
	require.Eventually(t, func() bool { return shard.connections() == 0 }, timeout, time.Millisecond)
}
