package ledger

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func never(*http.Request, *apirequest.RequestInfo) bool { return false }

func refuse(w http.ResponseWriter, _ *http.Request, why string) {
	http.Error(w, why, http.StatusTooManyRequests)
}

// requestOf returns an authorized request.
func requestOf(ctx context.Context, cluster, verb, subject string, groups ...string) *http.Request {
	ctx = request.WithClusterName(ctx, logicalcluster.Name(cluster))
	ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: subject, Groups: groups})
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb})
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
}

// hanging is a handler that hangs until the test releases it.
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

// start sends a request and waits until it hangs, or returns the response.
func (h *hanging) start(r *http.Request) (code int) {
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

func (h *hanging) finish(n int) {
	for range n {
		h.goOn <- struct{}{}
		require.Equal(h.t, http.StatusOK, <-h.done)
	}
}

func TestExecuting(t *testing.T) {
	e := NewExecuting(1, 2, nil)
	h := hang(t, false, func(next http.Handler) http.Handler { return e.Wrap(next, never, refuse) })
	ctx := t.Context()
	require.Zero(t, h.start(requestOf(ctx, "a", "create", "jane")))
	for range 3 {
		require.Zero(t, h.start(requestOf(ctx, "a", "create", "root", user.SystemPrivilegedGroup)), "requests of administrators must not count")
	}
	require.Zero(t, h.start(requestOf(ctx, "b", "patch", "jane")))
	require.Equal(t, http.StatusTooManyRequests, h.start(requestOf(ctx, "c", "delete", "joe")))
	require.Zero(t, h.start(requestOf(ctx, "c", "list", "joe")), "read requests have a separate limit")
	require.Equal(t, http.StatusTooManyRequests, h.start(requestOf(ctx, "c", "get", "joe")))
	require.Zero(t, h.start(requestOf(ctx, "c", "get", "root", user.SystemPrivilegedGroup)), "administrators must not be limited")
	require.Equal(t, 2, e.writing.highest())
	h.finish(7)
	require.Equal(t, 2, e.writing.highest(), "maximum since the last call")
	require.Zero(t, e.writing.highest())
	require.Zero(t, e.reading.now.Load()+e.writing.now.Load())
}

func TestPausedRequestsDoNotCount(t *testing.T) {
	e := NewExecuting(1, 1, nil)
	h := hang(t, true, func(next http.Handler) http.Handler { return e.Wrap(next, never, refuse) })
	for range 10 {
		require.Zero(t, h.start(requestOf(t.Context(), "noisy", "create", "joe")))
	}
	require.Zero(t, e.writing.now.Load())
	require.Zero(t, h.start(requestOf(t.Context(), "quiet", "create", "jane")))
	h.finish(11)
	require.Zero(t, e.writing.now.Load())
}
