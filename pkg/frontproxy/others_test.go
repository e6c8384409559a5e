package frontproxy

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/ports"
)

// TestStartsFromAnotherShard checks that a front-proxy without index that cannot reach root reads
// the list of shards from another one, serves reachable shards, returns 503 for unknown workspaces,
// and follows root again later.
func TestStartsFromAnotherShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	root, one := w.shards["root"], w.shards["one"]
	for _, shard := range []*fakeShard{root, one} {
		one.lists(t, shard.name, shard.url())
	}
	w.cluster(t, "one", "aaaa")
	w.workspace(t, "one", "aaaa", "child", "cccc")
	w.cluster(t, "one", "cccc")
	w.options.OtherShards = []string{nowhere, one.url()}
	root.kill()
	w.ready(t, "cccc", "one")
	jane := w.person(t, "jane")
	require.Equal(t, "one", jane.echoed(t, "/clusters/aaaa/api").Shard)
	require.Equal(t, "one", jane.echoed(t, "/clusters/aaaa:child/api").Shard)
	for _, unknown := range []string{"nnnn", "root:a"} {
		s := jane.fails(t, "/clusters/"+unknown+"/api", http.StatusServiceUnavailable)
		require.Contains(t, s.Message, "not all workspaces are known")
	}

	root.start(t)
	w.becomesComplete(t)
	w.addShard(t, "two")
	w.cluster(t, "two", "nnnn")
	w.awaitIndexed(t, "nnnn", "two")
	w.withdraw(t, "one")
	require.Eventually(t, func() bool { return w.proxy.shards.backend("one") == nil }, timeout, timeout/1000)
}

func TestStartWaitsForRoot(t *testing.T) {
	w := newWorld(t, "root")
	w.options.OtherShards = []string{nowhere}
	w.shards["root"].kill()
	w.run(t)
	require.Error(t, w.proxy.health.ready())
	w.shards["root"].start(t)
	require.Eventually(t, func() bool { return w.proxy.health.ready() == nil }, timeout, timeout/1000)
	w.stop()
	w.shards["root"].kill()
	w.run(t)
	w.stop() // while it waits

	w.options.OtherShards = []string{"http://127.0.0.1:1"}
	_, err := NewFrontProxy(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, `--other-shards "http://127.0.0.1:1" is not an https URL`)
}

// TestNeverReachableShard checks that clients retry requests for unknown workspaces only for a short time if
// a registered shard was never reachable, and that only administrators receive its name.
func TestNeverReachableShard(t *testing.T) {
	t.Parallel()
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
	require.Equal(t, "1", retryAfter, "the shard may become reachable soon")

	w.proxy.shards.mu.Lock()
	w.proxy.shards.ways["never"].follower.began = time.Now().Add(-shardRetryTimeout)
	w.proxy.shards.mu.Unlock()
	message, retryAfter := unknown(jane)
	require.Empty(t, retryAfter)
	require.NotContains(t, message, "never")
	message, retryAfter = unknown(admin)
	require.Empty(t, retryAfter)
	require.Contains(t, message, "a shard is unreachable: never. Start it, or delete its Shard object")
	res, _ := admin.get(t, "/clusters/root:mistyped/api")
	require.Contains(t, res.Header.Get("Warning"), "never", "kubectl does not show the message of a 503")

	w.withdraw(t, "never")
	require.Eventually(t, w.proxy.shards.complete, timeout, time.Millisecond)
	admin.fails(t, "/clusters/root:mistyped/api", http.StatusForbidden)
}

// TestUnknownWhileShardUnreachable checks that requests for workspaces that may have been created after
// a shard became unreachable return 503, also for users without access.
func TestUnknownWhileShardUnreachable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.ready(t)
	w.becomesComplete(t)
	jane := w.person(t, "jane")
	const path = "/clusters/root:new/api"
	jane.eventually(t, path, http.StatusForbidden)
	w.shards["one"].kill()
	jane.eventually(t, path, http.StatusServiceUnavailable)
	w.shards["one"].start(t)
	jane.eventually(t, path, http.StatusForbidden)
}
