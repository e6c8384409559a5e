package fairness

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/shardplane/shardplane/pkg/request"
)

// requestOf returns an authenticated request.
func requestOf(ctx context.Context, cluster, verb, query string, subject *user.DefaultInfo) *http.Request {
	ctx = request.WithClusterName(ctx, logicalcluster.Name(cluster))
	ctx = apirequest.WithUser(ctx, subject)
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{
		IsResourceRequest: true, Verb: verb, Resource: "configmaps", Namespace: "default", APIVersion: "v1",
	})
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/namespaces/default/configmaps?"+query, http.NoBody)
}

var (
	tenant = &user.DefaultInfo{Name: "tenant", Groups: []string{user.AllAuthenticated}}
	admin  = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
)

func isWatch(_ *http.Request, info *apirequest.RequestInfo) bool { return info.Verb == "watch" }

// gate is a handler that reports requests and blocks them.
type gate struct{ arrived, through chan struct{} }

func newGate() gate { return gate{make(chan struct{}), make(chan struct{})} }

func (g gate) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	g.arrived <- struct{}{}
	<-g.through
	w.WriteHeader(http.StatusOK)
}

func TestRefusesWith429AndExemptsTheSystem(t *testing.T) {
	g := newGate()
	h := NewFairness(Limits{Seats: 2, FlowSeats: 1, Waiting: 1, FlowWaiting: 1}, nil).Wrap(g, isWatch)
	codes := make(chan int, 3)
	serve := func(cluster string, subject *user.DefaultInfo) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, requestOf(t.Context(), cluster, "get", "", subject))
		codes <- w.Code
	}
	go serve("noisy", tenant)
	<-g.arrived

	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan int, 1)
	go func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, requestOf(ctx, "noisy", "get", "", tenant))
		waits <- w.Code
	}()
	refused := httptest.NewRecorder()
	require.Eventually(t, func() bool {
		ended, end := context.WithCancel(t.Context())
		end() // it does not wait if there is capacity
		refused = httptest.NewRecorder()
		h.ServeHTTP(refused, requestOf(ended, "noisy", "get", "", &user.DefaultInfo{Name: "another"}))
		return refused.Code == http.StatusTooManyRequests
	}, 10*time.Second, time.Millisecond)
	require.NotEmpty(t, refused.Header().Get("Retry-After"))

	go serve("quiet", tenant)
	<-g.arrived
	go serve("noisy", admin)
	<-g.arrived
	cancel()
	require.Equal(t, http.StatusTooManyRequests, <-waits)
	for range 3 {
		g.through <- struct{}{}
	}
	for range 3 {
		require.Equal(t, http.StatusOK, <-codes)
	}
}

func TestWatchesReleaseTheirSeatAfterInitialEvents(t *testing.T) {
	opened, end := make(chan struct{}), make(chan struct{})
	f := NewFairness(Limits{Seats: 1, FlowSeats: 1, Waiting: 1, FlowWaiting: 1}, nil)
	h := f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, _ := apirequest.RequestInfoFrom(r.Context()); info.Verb != "watch" {
			return
		}
		opened <- struct{}{}
		flowcontrol.WatchInitialized(r.Context())
		<-end
	}), isWatch)
	done := make(chan struct{})
	for range 5 { // one after the other, on one seat
		go func() {
			h.ServeHTTP(httptest.NewRecorder(), requestOf(t.Context(), "c", "watch", "", tenant))
			done <- struct{}{}
		}()
		<-opened
		require.Eventually(t, func() bool { inUse, _, _ := f.queue.state(); return inUse == 0 }, time.Minute, time.Millisecond)
	}
	write := f.costs.estimate(requestOf(t.Context(), "c", "update", "", tenant), "", "")
	require.Equal(t, 5*watchCost, write.AdditionalLatency, "writes must include the cost of watchers")
	all := requestOf(t.Context(), "c", "deletecollection", "", tenant)
	require.Equal(t, 5*watchCost, f.costs.estimate(all, "", "").AdditionalLatency, "the number of objects is unknown, and at least one")
	info, _ := apirequest.RequestInfoFrom(all.Context())
	cluster, _ := request.ClusterFrom(all.Context())
	f.costs.lists.Add(listKeyOf(all, cluster, info), int64(100*bytesPerObject))
	require.Equal(t, 500*watchCost, f.costs.estimate(all, "", "").AdditionalLatency, "the cost must include all objects")
	elsewhere := f.costs.estimate(requestOf(t.Context(), "d", "update", "", tenant), "", "")
	require.Zero(t, elsewhere.AdditionalLatency, "watchers of other logical clusters must not count")
	close(end)
	for range 5 {
		<-done
	}
	require.Empty(t, f.costs.watches)
}

func TestListsTakeSeatsBySize(t *testing.T) {
	f := NewFairness(Limits{Seats: 20, FlowSeats: 20, Waiting: 1, FlowWaiting: 1}, nil)
	size := 3 * bytesPerSeat
	h := f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Repeat("x", size)))
	}), isWatch)
	seats := func(cluster, verb, query string) int {
		return int(f.costs.estimate(requestOf(t.Context(), cluster, verb, query, tenant), "", "").InitialSeats) //nolint:gosec // small
	}
	require.Equal(t, 1, seats("large", "list", ""), "no list was recorded yet")
	h.ServeHTTP(httptest.NewRecorder(), requestOf(t.Context(), "large", "list", "", tenant))
	require.Equal(t, 4, seats("large", "list", ""))
	require.Equal(t, 4, seats("large", "watch", "sendInitialEvents=true"))
	require.Equal(t, 1, seats("large", "watch", "resourceVersion=7"))
	require.Equal(t, 1, seats("large", "list", "limit=10"), "pages are recorded separately")
	require.Equal(t, 1, seats("small", "list", ""), "lists of other logical clusters must not count")
	size = 100 * bytesPerSeat
	h.ServeHTTP(httptest.NewRecorder(), requestOf(t.Context(), "large", "list", "", tenant))
	require.Equal(t, maxSeats, seats("large", "list", ""))
}

func TestSurvivesCrashes(t *testing.T) {
	f := NewFairness(Limits{Seats: 1, FlowSeats: 1, Waiting: 1, FlowWaiting: 1}, nil)
	h := f.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), isWatch)
	for range 3 {
		require.Panics(t, func() { h.ServeHTTP(httptest.NewRecorder(), requestOf(t.Context(), "c", "get", "", tenant)) })
	}
	inUse, waits, flows := f.queue.state()
	require.Zero(t, inUse+waits+flows)
}

func TestOptions(t *testing.T) {
	o := NewOptions()
	require.Empty(t, o.Validate())
	f := o.New(nil)
	require.Positive(t, f.queue.limits.Seats)
	require.Less(t, f.queue.limits.FlowSeats, f.queue.limits.Seats)
	o.Seats, o.Paused = -1, -1
	require.Len(t, o.Validate(), 2)
	o.Enabled = false
	require.Nil(t, o.New(nil))
}

// A flood is throttled only if it would occupy all cores.
func TestThrottleOn(t *testing.T) {
	for cores, want := range map[int]float64{1: 2, 2: 2, 3: 2, 4: 0, 64: 0} {
		require.InDelta(t, want, throttleOn(cores), 0, "%d cores", cores)
	}
}
