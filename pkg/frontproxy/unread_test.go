package frontproxy

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/ports"
)

// TestShardThatWasNeverReachable checks that requests for workspaces that do not exist are not
// repeated for long while a registered shard has never answered, and that administrators, and no
// other users, are told which one.
func TestShardThatWasNeverReachable(t *testing.T) {
	w := newWorld(t, "root")
	w.announce(t, "never", fmt.Sprintf("https://127.0.0.1:%d", ports.Free(t, 1)))
	w.ready(t)
	jane, admin := w.person(t, "jane"), w.person(t, "admin", "system:kcp:admin")
	require.Eventually(t, func() bool { return w.proxy.shards.follower("never") != nil }, timeout, time.Millisecond)
	unknown := func(p *person) (string, string) {
		t.Helper()
		res, body := p.get(t, "/clusters/root:mistyped/api")
		return status(t, res, body, http.StatusServiceUnavailable).Message, res.Header.Get("Retry-After")
	}
	_, retryAfter := unknown(jane)
	require.Equal(t, "1", retryAfter, "it may answer soon")

	w.proxy.shards.mu.Lock()
	w.proxy.shards.ways["never"].follower.began = time.Now().Add(-shardRetryTimeout)
	w.proxy.shards.mu.Unlock()
	message, retryAfter := unknown(jane)
	require.Empty(t, retryAfter)
	require.NotContains(t, message, "never")
	message, retryAfter = unknown(admin)
	require.Empty(t, retryAfter)
	require.Contains(t, message, "a shard does not answer: never. Start it, or delete its Shard object")
	res, _ := admin.get(t, "/clusters/root:mistyped/api")
	require.Contains(t, res.Header.Get("Warning"), "never", "kubectl does not show the message of a 503")

	w.withdraw(t, "never")
	require.Eventually(t, w.proxy.shards.complete, timeout, time.Millisecond)
	res, body := admin.get(t, "/clusters/root:mistyped/api")
	status(t, res, body, http.StatusForbidden)
}

// TestUnknownWhileAShardIsAway checks that a workspace that may have been created since the connection
// to its shard broke is not said to be forbidden, to users who may not enter others neither.
func TestUnknownWhileAShardIsAway(t *testing.T) {
	w := newWorld(t, "root", "one")
	w.ready(t)
	w.becomesComplete(t)
	jane := w.person(t, "jane")
	answers := func(code int) {
		t.Helper()
		require.Eventually(t, func() bool {
			res, _ := jane.get(t, "/clusters/root:new/api")
			return res.StatusCode == code
		}, timeout, time.Millisecond)
	}
	answers(http.StatusForbidden)
	w.shards["one"].kill()
	answers(http.StatusServiceUnavailable)
	w.shards["one"].start(t)
	answers(http.StatusForbidden)
}
