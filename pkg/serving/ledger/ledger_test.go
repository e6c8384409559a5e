package ledger

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

func holder(cluster, name string) Holder {
	return Holder{Cluster: logicalcluster.Name(cluster), User: identity.Flow{User: name}}
}

func takeAll(l *Ledger, h Holder) (n int) {
	for l.Take(h, 1) == nil {
		n++
	}
	return n
}

func TestTotal(t *testing.T) {
	l := NewLedger(Bounds{Total: 100, User: 30})
	require.Equal(t, 30, takeAll(l, holder("", "a")), "limit of the user")
	require.Equal(t, 30, takeAll(l, holder("", "b")))
	require.Equal(t, 20, takeAll(l, holder("", "c")), "half of the remaining capacity")
	require.Equal(t, 10, takeAll(l, holder("", "d")))
	require.Equal(t, 5, takeAll(l, holder("", "e")))
	require.EqualValues(t, 95, l.Held())
	require.NoError(t, l.Take(holder("", "newcomer"), 1))
	require.Error(t, l.Take(holder("", "large"), 30))

	l.Give(holder("", "a"), 30)
	require.Equal(t, 17, takeAll(l, holder("", "a")))
	for h, n := range l.holders {
		l.Give(h, n)
	}
	require.Zero(t, l.Held())
	require.Empty(t, l.holders)
	require.Empty(t, l.users)
	require.Empty(t, l.clusters)
}

func TestMinimumPerUser(t *testing.T) {
	l := NewLedger(Bounds{Total: 4, User: 3, Own: 2})
	for _, subject := range []string{"a", "b", "c", "d"} {
		require.Equal(t, 2, takeAll(l, holder("", subject)), "the minimum must not depend on other users")
	}
	require.EqualValues(t, 8, l.Held())
}

func TestClusterAndUser(t *testing.T) {
	l := NewLedger(Bounds{Cluster: 8, User: 6})
	require.Equal(t, 4, takeAll(l, holder("noisy", "joe")), "half of the limit of the logical cluster")
	require.Equal(t, 2, takeAll(l, holder("noisy", "jim")))
	require.Equal(t, 2, takeAll(l, holder("another", "joe")), "the limit of the user must apply to all logical clusters")
	require.Equal(t, 4, takeAll(l, holder("quiet", "jane")))
	require.Equal(t, 6, takeAll(l, holder("", "jack")), "only the limit of the user applies without a logical cluster")
}

func TestUnlimited(t *testing.T) {
	l := NewLedger(Bounds{})
	for range 10_000 {
		require.NoError(t, l.Take(holder("a", "joe"), 1))
	}
}

// TestLimits checks the flag, and that rejections contain the limit and are counted.
func TestLimits(t *testing.T) {
	limits := Limits{WatchesPerCluster: 5000, WatchesPerUser: 5000, BodyBytes: 1}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	limits.AddFlags(fs)
	require.NoError(t, fs.Parse([]string{"--limit", "watches-per-cluster=20,watches-per-user=12", "--limit=body-bytes=64Mi"}))
	require.Equal(t, Limits{WatchesPerCluster: 20, WatchesPerUser: 12, BodyBytes: 64 << 20}, limits)
	require.Equal(t, "body-bytes=67108864,watches-per-cluster=20,watches-per-user=12", limits.String())
	for name := range limits {
		require.Contains(t, fs.FlagUsages(), name+": "+strings.SplitN(descriptions[name], ";", 2)[0])
	}
	require.ErrorContains(t, fs.Parse([]string{"--limit=requests=1"}), `"requests" is not one of the limits body-bytes, watches-per-cluster, watches-per-user`)
	for _, wrong := range []string{"watches-per-user", "watches-per-user=", "watches-per-user=-1", "watches-per-user=many"} {
		require.ErrorContains(t, fs.Parse([]string{"--limit", wrong}), "limit watches-per-user must be a quantity of at least 0, such as watches-per-user=1000")
	}

	registry := prometheus.NewRegistry()
	l := limits.Ledger(WatchesResource, 0, registry)
	require.NoError(t, l.Take(holder("noisy", "joe"), 10))
	require.EqualError(t, l.Take(holder("noisy", "joe"), 1), "the watches in this logical cluster would exceed --limit watches-per-cluster=20")
	require.EqualError(t, l.Take(holder("quiet", "joe"), 3), "the watches of this user would exceed --limit watches-per-user=12")
	bodies := limits.Ledger(BodyBytesResource, 0, registry)
	require.EqualError(t, bodies.Take(holder("quiet", "joe"), 65<<20), "the body-bytes of all users would exceed --limit body-bytes=67108864")
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP shardplane_limits_rejected_total [ALPHA] Requests rejected with 429, and watches ended, because of a limit, by name of the limit: one of --limit, or max-requests-inflight.
# TYPE shardplane_limits_rejected_total counter
shardplane_limits_rejected_total{limit="body-bytes"} 1
shardplane_limits_rejected_total{limit="watches-per-cluster"} 1
shardplane_limits_rejected_total{limit="watches-per-user"} 1
`)))
}

func TestDescriptions(t *testing.T) {
	for name, description := range descriptions {
		require.NotEmpty(t, description, name)
	}
	require.Len(t, descriptions, 11)
}

func TestWrap(t *testing.T) {
	l := NewLedger(Bounds{User: 2})
	h := hang(t, false, func(next http.Handler) http.Handler {
		return l.Wrap(next, func(r *http.Request, _ *apirequest.RequestInfo) int64 { return int64(len(r.Header)) }, refuse)
	})
	// start sends a request that counts n, and returns the status, or 0 if it is being executed.
	start := func(ctx context.Context, n int, subject string, groups ...string) int {
		r := requestOf(ctx, "a", "get", subject, groups...)
		for i := range n {
			r.Header.Set("X-"+string(rune('a'+i)), "")
		}
		return h.start(r)
	}
	ctx := t.Context()
	require.Zero(t, start(ctx, 2, "joe"))
	require.Equal(t, http.StatusTooManyRequests, start(ctx, 1, "joe"))
	require.Zero(t, start(ctx, 0, "joe"), "requests without costs must not be limited")
	require.Zero(t, start(ctx, 1, "jane"))
	require.Zero(t, start(identity.WithFlow(ctx, identity.Flow{User: "jane"}), 1, "joe"), "requests must count for the impersonating user")
	require.Equal(t, http.StatusTooManyRequests, start(ctx, 1, "jane"))
	require.Zero(t, start(ctx, 3, "root", user.SystemPrivilegedGroup))
	h.finish(5)
	require.Zero(t, l.Held())
}
