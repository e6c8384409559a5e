package watchdog

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/finisher"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/component-base/metrics/testutil"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	deadline = 30 * time.Second
	tick     = time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shortRunning(*http.Request, *apirequest.RequestInfo) bool { return false }

func contextOf(t *testing.T, cluster, subject, verb string) context.Context {
	t.Helper()
	ctx := apirequest.WithUser(request.WithClusterName(t.Context(), logicalcluster.Name(cluster)), &user.DefaultInfo{Name: subject})
	return apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{Verb: verb})
}

// newWithShortGracePeriod returns a watchdog with a short grace period.
func newWithShortGracePeriod() *Watchdog {
	d := NewWatchdog(nil)
	d.gracePeriod = time.Microsecond
	return d
}

// serve calls the handler for a request, and closes the returned channel afterwards.
func serve(ctx context.Context, h http.Handler) <-chan struct{} {
	done := make(chan struct{})
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
	go func() {
		defer close(done)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	return done
}

func (d *Watchdog) code(t *testing.T, cluster, subject string) int {
	t.Helper()
	w := httptest.NewRecorder()
	d.Throttle(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.WriteHeader(http.StatusTooManyRequests)
	}).ServeHTTP(w, httptest.NewRequestWithContext(contextOf(t, cluster, subject, "get"), http.MethodGet, "/", http.NoBody))
	return w.Code
}

// writing is a handler that executes a write like those of k8s.io/apiserver, until release.
func writing(release <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = finisher.FinishRequest(r.Context(), func() (runtime.Object, error) {
			<-release
			return nil, nil
		})
	})
}

// TestOverdueWrites checks that a write that continues after its context keeps its seat, and
// throttles its user until it ends.
func TestOverdueWrites(t *testing.T) {
	for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
		d := newWithShortGracePeriod()
		release := make(chan struct{})
		ctx, end := context.WithCancel(contextOf(t, "a", "mallory", verb))
		done := serve(ctx, d.Watch(writing(release), shortRunning))
		require.Equal(t, http.StatusOK, d.code(t, "a", "mallory"), "requests before their deadline must not throttle")
		end()
		require.Eventually(t, func() bool { return d.code(t, "b", "mallory") == http.StatusTooManyRequests }, deadline, tick, verb)
		d.takeProfile(time.Now())
		select {
		case <-done:
			require.FailNow(t, "the seat was released although the request is still being executed")
		default:
		}
		require.Equal(t, http.StatusOK, d.code(t, "a", "alice"), "overdue requests of one user must not throttle other users")
		close(release)
		<-done
		require.Equal(t, http.StatusOK, d.code(t, "b", "mallory"))
		require.Zero(t, d.requests.Held())
	}
}

// TestOverdueResponses checks that the client of an overdue write gets the response of the handler if the write ends
// before the deadline of the request, and 504 otherwise.
func TestOverdueResponses(t *testing.T) {
	for name, want := range map[string]int{"ends": http.StatusServiceUnavailable, "continues": http.StatusGatewayTimeout} {
		d := newWithShortGracePeriod()
		release := make(chan struct{})
		write := d.Watch(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			writing(release).ServeHTTP(w, r)
			http.Error(w, "late", http.StatusServiceUnavailable)
		}), shortRunning)
		timeout := deadline
		if name == "continues" {
			timeout = 500 * time.Millisecond
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(contextOf(t, "a", "mallory", "create"), timeout)
			defer cancel()
			genericfilters.WithTimeoutForNonLongRunningRequests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithTimeout(r.Context(), time.Millisecond)
				defer cancel()
				write.ServeHTTP(w, r.WithContext(ctx))
			}), shortRunning).ServeHTTP(w, r.WithContext(ctx))
		}))
		if name == "ends" {
			go func() {
				for range time.Tick(tick) {
					if d.code(t, "a", "mallory") == http.StatusTooManyRequests {
						close(release)
						return
					}
				}
			}()
		}
		response, err := server.Client().Post(server.URL, "", http.NoBody) //nolint:noctx // the server is local
		require.NoError(t, err, name)
		require.NoError(t, response.Body.Close())
		require.Equal(t, want, response.StatusCode, name)
		if name == "continues" {
			close(release)
		}
		require.Eventually(t, func() bool { return d.code(t, "a", "mallory") == http.StatusOK }, deadline, tick)
		server.Close()
	}
}

// TestOverdueReads checks that handlers that continue themselves are overdue as well, and that
// several throttle their logical cluster, except for root.
func TestOverdueReads(t *testing.T) {
	for cluster, want := range map[string]int{"a": http.StatusTooManyRequests, "root": http.StatusOK, "system:admin": http.StatusOK} {
		d := newWithShortGracePeriod()
		release := make(chan struct{})
		computing := d.Watch(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), shortRunning)
		var all []<-chan struct{}
		for _, subject := range []string{"mallory", "moriarty"} {
			ctx, end := context.WithCancel(contextOf(t, cluster, subject, "list"))
			all = append(all, serve(ctx, computing))
			end()
			require.Eventually(t, func() bool { return d.code(t, "b", subject) == http.StatusTooManyRequests }, deadline, tick)
		}
		require.Equal(t, want, d.code(t, cluster, "alice"), cluster)
		total, err := testutil.GetCounterMetricValue(d.overdueTotal)
		require.NoError(t, err)
		require.InDelta(t, 2, total, 0)
		now, err := testutil.GetGaugeMetricValue(d.overdue)
		require.NoError(t, err)
		require.InDelta(t, 2, now, 0)
		require.Equal(t, http.StatusOK, d.code(t, "b", "alice"))
		close(release)
		for _, done := range all {
			<-done
		}
		require.Equal(t, http.StatusOK, d.code(t, cluster, "alice"))
		now, err = testutil.GetGaugeMetricValue(d.overdue)
		require.NoError(t, err)
		require.Zero(t, now)
	}
}

func TestExempt(t *testing.T) {
	d := newWithShortGracePeriod()
	release := make(chan struct{})
	ctx, end := context.WithCancel(apirequest.WithUser(contextOf(t, "a", "", "update"), &user.DefaultInfo{Name: user.APIServerUser}))
	done := serve(ctx, d.Watch(writing(release), shortRunning))
	end()
	d.takeProfile(time.Now())
	require.Zero(t, d.requests.Held())
	close(release)
	<-done
}

// TestCutStacks checks that goroutines with truncated stacks count.
func TestCutStacks(t *testing.T) {
	d := newWithShortGracePeriod()
	release := make(chan struct{})
	ctx, end := context.WithCancel(contextOf(t, "a", "mallory", "create"))
	done := serve(ctx, d.Watch(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = finisher.FinishRequest(r.Context(), func() (runtime.Object, error) {
			deep(1000, release)
			return nil, nil
		})
	}), shortRunning))
	end()
	require.Eventually(t, func() bool { return d.code(t, "a", "mallory") == http.StatusTooManyRequests }, deadline, tick)
	for range 2 {
		require.NotEmpty(t, d.takeProfile(time.Now()))
	}
	close(release)
	<-done
}

func deep(n int, release <-chan struct{}) int {
	if n == 0 {
		<-release
		return 0
	}
	return deep(n-1, release) + 1
}
