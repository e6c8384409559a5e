package inflight

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func never(*http.Request, *apirequest.RequestInfo) bool { return false }

func one(*http.Request, *apirequest.RequestInfo) int { return 1 }

func refuse(w http.ResponseWriter, _ *http.Request, why string) {
	http.Error(w, why, http.StatusTooManyRequests)
}

// asked returns a request as it is behind authorization.
func asked(ctx context.Context, cluster, verb, who string, groups ...string) *http.Request {
	ctx = request.WithClusterName(ctx, logicalcluster.Name(cluster))
	ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: who, Groups: groups})
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb})
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
}

// hanging is a handler whose requests hang until the test lets them go.
type hanging struct {
	http.Handler

	t      *testing.T
	inside chan struct{}
	goOn   chan struct{}
	done   chan int
}

func hang(t *testing.T, pauses bool, wrap func(http.Handler) http.Handler) *hanging {
	h := &hanging{t: t, inside: make(chan struct{}), goOn: make(chan struct{}), done: make(chan int)}
	h.Handler = wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if pauses {
			defer request.Pause(r.Context())()
		}
		h.inside <- struct{}{}
		<-h.goOn
	}))
	return h
}

// enter sends a request and waits until it hangs, or returns the answer.
func (h *hanging) enter(r *http.Request) (code int) {
	go func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		h.done <- w.Code
	}()
	select {
	case <-h.inside:
		return 0
	case code := <-h.done:
		return code
	}
}

// leave lets n requests go.
func (h *hanging) leave(n int) {
	for range n {
		h.goOn <- struct{}{}
		require.Equal(h.t, http.StatusOK, <-h.done)
	}
}

func TestExecuting(t *testing.T) {
	e := NewExecuting(1, 2, nil)
	h := hang(t, false, func(next http.Handler) http.Handler { return e.Wrap(next, never, refuse) })
	ctx := t.Context()
	require.Zero(t, h.enter(asked(ctx, "a", "create", "jane")))
	for range 3 {
		require.Zero(t, h.enter(asked(ctx, "a", "create", "root", user.SystemPrivilegedGroup)), "administrators take no place of others")
	}
	require.Zero(t, h.enter(asked(ctx, "b", "patch", "jane")))
	require.Equal(t, http.StatusTooManyRequests, h.enter(asked(ctx, "c", "delete", "joe")))
	require.Zero(t, h.enter(asked(ctx, "c", "list", "joe")), "what reads has a limit of its own")
	require.Equal(t, http.StatusTooManyRequests, h.enter(asked(ctx, "c", "get", "joe")))
	require.Zero(t, h.enter(asked(ctx, "c", "get", "root", user.SystemPrivilegedGroup)), "administrators always get in")
	require.Equal(t, 2, e.writing.highest())
	h.leave(7)
	require.Equal(t, 2, e.writing.highest(), "the highest since the last time")
	require.Zero(t, e.writing.highest())
	require.Zero(t, e.reading.now.Load()+e.writing.now.Load())
}

// TestPausedRequestsDoNotCount holds that however many wait for webhooks, others execute.
func TestPausedRequestsDoNotCount(t *testing.T) {
	e := NewExecuting(1, 1, nil)
	h := hang(t, true, func(next http.Handler) http.Handler { return e.Wrap(next, never, refuse) })
	for range 10 {
		require.Zero(t, h.enter(asked(t.Context(), "noisy", "create", "joe")))
	}
	require.Zero(t, e.writing.now.Load())
	require.Zero(t, h.enter(asked(t.Context(), "quiet", "create", "jane")))
	h.leave(11)
	require.Zero(t, e.writing.now.Load())
}

func TestShares(t *testing.T) {
	s := NewShares(Limits{Cluster: 8, User: 6, of: requests}, nil)
	h := hang(t, false, func(next http.Handler) http.Handler { return s.Wrap(next, one, refuse) })
	ctx := t.Context()
	flood := func(r *http.Request) (entered int) {
		for h.enter(r) == 0 {
			entered++
		}
		return entered
	}
	require.Equal(t, 4, flood(asked(ctx, "noisy", "create", "joe")), "one user leaves as many as he has to others")
	require.Equal(t, 2, flood(asked(ctx, "noisy", "create", "jim")))
	require.Equal(t, 2, flood(asked(ctx, "another", "create", "joe")), "a user's bound is for all logical clusters")
	require.Equal(t, 4, flood(asked(ctx, "quiet", "list", "jane")))
	require.Equal(t, 1, flood(asked(identity.WithPayer(ctx, identity.Payer{User: "joan"}), "noisy", "get", "joe")), "who impersonates pays")
	require.Zero(t, h.enter(asked(ctx, "noisy", "get", "root", user.SystemPrivilegedGroup)))
	h.leave(14)
	require.Empty(t, s.clusters)
	require.Empty(t, s.users)
	require.Empty(t, s.members)
}

func TestLimits(t *testing.T) {
	l := NewLimits()
	require.Empty(t, l.Validate())
	l.User = -1
	require.Len(t, l.Validate(), 1)
	s := NewShares(Limits{}, nil)
	for range 10_000 {
		require.Empty(t, s.enter(member{cluster: "a"}, 1))
	}
}

// TestWeights holds that what counts more takes more, and is told what limits it.
func TestWeights(t *testing.T) {
	limits := NewWatchLimits()
	fs := pflag.NewFlagSet("", pflag.PanicOnError)
	limits.AddFlags(fs)
	require.NoError(t, fs.Parse([]string{"--max-watches-per-cluster=20", "--max-watches-per-user=12"}))
	s := NewShares(limits, nil)
	var why []string
	h := hang(t, false, func(next http.Handler) http.Handler {
		return s.Wrap(next, func(r *http.Request, _ *apirequest.RequestInfo) int { return len(r.Header) }, func(w http.ResponseWriter, r *http.Request, text string) {
			why = append(why, text)
			refuse(w, r, text)
		})
	})
	weighing := func(n int, cluster, who string) *http.Request {
		r := asked(t.Context(), cluster, "watch", who)
		for i := range n {
			r.Header.Set(fmt.Sprint("X-", i), "")
		}
		return r
	}
	require.Zero(t, h.enter(weighing(9, "noisy", "joe")))
	require.Equal(t, http.StatusTooManyRequests, h.enter(weighing(4, "noisy", "joe")))
	require.Zero(t, h.enter(weighing(1, "noisy", "joe")))
	require.Equal(t, http.StatusTooManyRequests, h.enter(weighing(1, "noisy", "joe")), "one user leaves as much as he has to others")
	require.Zero(t, h.enter(weighing(2, "quiet", "joe")))
	require.Equal(t, http.StatusTooManyRequests, h.enter(weighing(1, "quiet", "joe")), "a user's bound is for all logical clusters")
	require.Equal(t, []string{
		"too many watches of this user are open, or their selectors are too large, see --max-watches-per-user",
		"too many watches for this logical cluster are open, or their selectors are too large, see --max-watches-per-cluster",
		"too many watches of this user are open, or their selectors are too large, see --max-watches-per-user",
	}, why)
	h.leave(3)
	require.Empty(t, s.members)
}
