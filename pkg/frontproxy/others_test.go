package frontproxy

import (
	"net/http"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestStartsFromAnotherShard starts a front-proxy that knows nothing while root is away: it learns of the shards
// from another one, serves what those that answer hold, denies nothing for certain, and follows root when that is back.
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
		require.Contains(t, status(t, res, body, http.StatusServiceUnavailable).Message, "does not know all")
	}

	root.start(t)
	w.becomesComplete(t)
	w.addShard(t, "two")
	w.cluster(t, "two", "nnnn")
	w.knows(t, "nnnn", "two")
	w.withdraw(t, "one")
	require.Eventually(t, func() bool { return w.proxy.shards.backend("one") == nil }, timeout, timeout/1000)
}

// TestStartsWhenRootIsBack starts a front-proxy while nobody says which shards there are, until root does.
func TestStartsWhenRootIsBack(t *testing.T) {
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
	w.stop() // while it asks

	w.options.OtherShards = []string{"http://127.0.0.1:1"}
	_, err := New(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, `--other-shards "http://127.0.0.1:1" is no https URL`)
}
