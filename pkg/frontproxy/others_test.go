package frontproxy

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
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
		one.data.Put(t, kinds.Shards.GroupVersionResource, &corev1alpha1.Shard{
			ObjectMeta: metav1.ObjectMeta{Name: shard.name, Annotations: map[string]string{logicalcluster.AnnotationKey: "root"}},
			Spec:       corev1alpha1.ShardSpec{BaseURL: "https://" + shard.addr},
		})
	}
	w.cluster(t, "one", "aaaa")
	w.workspace(t, "one", "aaaa", "child", "cccc")
	w.cluster(t, "one", "cccc")
	w.options.OtherShards = []string{"https://127.0.0.1:1", "https://" + one.addr}
	root.kill()
	w.ready(t)
	w.knows(t, "cccc", "one")
	jane := w.person(t, "jane")
	require.Equal(t, "one", jane.echoed(t, "/clusters/aaaa/api").Shard)
	require.Equal(t, "one", jane.echoed(t, "/clusters/aaaa:child/api").Shard)
	for _, unknown := range []string{"nnnn", "root:a"} {
		res, body := jane.get(t, "/clusters/"+unknown+"/api")
		require.Contains(t, status(t, res, body, http.StatusServiceUnavailable).Message, "not all workspaces are known")
	}

	root.start(t)
	w.becomesComplete(t)
	w.addShard(t, "two")
	w.cluster(t, "two", "nnnn")
	w.knows(t, "nnnn", "two")
	w.withdraw(t, "one")
	require.Eventually(t, func() bool { return w.proxy.shards.backend("one") == nil }, timeout, timeout/1000)
}

// TestStartWaitsForRoot checks that a front-proxy waits for root if no shard is reachable.
func TestStartWaitsForRoot(t *testing.T) {
	w := newWorld(t, "root")
	w.options.OtherShards = []string{"https://127.0.0.1:1"}
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
	_, err := New(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, `--other-shards "http://127.0.0.1:1" is not an https URL`)
}

// TestShardThatWasNeverReachable checks that clients retry requests for unknown workspaces only for a short time if
// a registered shard was never reachable, and that only administrators receive its name.
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
	require.Contains(t, message, "a shard is unreachable: never. Start it, or delete its Shard object")
	res, _ := admin.get(t, "/clusters/root:mistyped/api")
	require.Contains(t, res.Header.Get("Warning"), "never", "kubectl does not show the message of a 503")

	w.withdraw(t, "never")
	require.Eventually(t, w.proxy.shards.complete, timeout, time.Millisecond)
	res, body := admin.get(t, "/clusters/root:mistyped/api")
	status(t, res, body, http.StatusForbidden)
}

// TestUnknownWhileShardUnreachable checks that requests for workspaces that may have been created after
// a shard became unreachable return 503, also for users without access.
func TestUnknownWhileShardUnreachable(t *testing.T) {
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
