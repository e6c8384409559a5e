package listwatch

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestListWatchExpires checks on every endpoint that compacted versions are expired, and that the response for an expired token contains
// one to continue with.
func TestListWatchExpires(t *testing.T) {
	t.Parallel()
	// A private cluster, because its etcd compacts all the time.
	compaction := []string{"--etcd-compaction-interval=500ms"}
	e := kit.Start(t, harness.Options{ExtraArgs: map[string][]string{"shard": compaction, "cache-server": compaction}})
	all := endpoints(t, e)
	firsts := map[string]anyList{}
	for _, at := range all {
		firsts[at.name] = at.list(t, "", "limit", "3")
	}
	for _, at := range all {
		if at.one && !at.same {
			at.create(t, "zz-later")
		}
	}
	eachEndpoint(t, all, func(t *testing.T, at endpoint) {
		first := firsts[at.name]
		next := at.call("limit", "100", "continue", first.Metadata.Continue)
		e.Eventually("the token expires", func() bool {
			code, _ := kit.Do(t, at.config, next)
			return code == http.StatusGone
		})
		status := kit.RequireStatus(t, at.config, next, http.StatusGone)
		require.Equal(t, metav1.StatusReasonExpired, status.Reason)
		require.NotEmpty(t, status.Continue)

		// The rest of the list is current. It must neither repeat nor miss objects that existed all the time.
		rest := at.list(t, "", "limit", "100", "continue", status.Continue)
		require.Empty(t, rest.Metadata.Continue)
		require.Greater(t, number(t, rest.Metadata.ResourceVersion), number(t, first.Metadata.ResourceVersion))
		require.Equal(t, at.list(t, "").names(), append(first.names(), rest.names()...))

		exactly := at.call("resourceVersion", first.Metadata.ResourceVersion, "resourceVersionMatch", "Exact", "limit", "100")
		status = kit.RequireStatus(t, at.config, exactly, http.StatusGone)
		require.Equal(t, metav1.StatusReasonExpired, status.Reason)
	})
}
