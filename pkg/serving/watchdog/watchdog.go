// Package watchdog handles requests that continue to compute after their context has ended, because
// the client has disconnected or the deadline has passed. Libraries for validation, conversion and
// apply ignore contexts. Such a request is overdue:
//
//   - it keeps its seat and counts as in flight until it ends, so that it cannot be repeated without limit;
//   - requests of its user, and of its logical cluster if several are overdue there, are rejected with 429;
//   - it is counted in metrics.
//
// The handlers of k8s.io/apiserver execute writes in a goroutine that continues after the end of the context. The
// watchdog finds it by a label in the goroutine profile. Profiles are only taken after such requests, and use at
// most 5 % of the time of one core.
package watchdog

import (
	"bytes"
	"context"
	"net/http"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	"github.com/prometheus/client_golang/prometheus"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

const (
	// handlerTimeout is slightly less than the time after which the handlers of k8s.io/apiserver return
	// from a write even if its context has not ended.
	handlerTimeout = 30 * time.Second
	// period is the minimum time between two profiles. A profile takes at most 1/share of the time.
	period = 100 * time.Millisecond
	share  = 20
	// perCluster is the number of overdue requests for which all users of a logical cluster are throttled. The
	// number is larger than one because a single user must not block all others.
	//
	//reference:limit cluster | requests that still compute a second after their end, of all users; 1 of each user | from this number on, 429 until they end
	perCluster = 2
	// label is the label of the goroutines of a request. The stacks of writes contain finishing.
	label     = "shardplane-request"
	finishing = "k8s.io/apiserver/pkg/endpoints/handlers/finisher."
)

// Watchdog tracks the overdue requests of a server.
type Watchdog struct {
	gracePeriod time.Duration // how long a request may compute after the end of its context
	last        atomic.Uint64
	requests    *ledger.Ledger // overdue ones, without limits

	overdue      prometheus.Gauge
	overdueTotal prometheus.Counter
	throttled    *prometheus.CounterVec

	profiling sync.Mutex
	profiled  time.Time
	pause     time.Duration
	running   map[string]struct{}
}

// NewWatchdog returns a watchdog. registerer may be nil.
func NewWatchdog(registerer prometheus.Registerer) *Watchdog {
	return &Watchdog{
		gracePeriod: time.Second, requests: ledger.NewLedger(ledger.Bounds{}),
		overdue: instruments.NewGauge(registerer, "shardplane_watchdog_overdue_requests",
			"Requests that are computing although their context has ended."),
		overdueTotal: instruments.NewCounter(registerer, "shardplane_watchdog_overdue_requests_total",
			"Requests that computed for more than a second after their context had ended."),
		throttled: instruments.NewCounterVec(registerer, "shardplane_watchdog_throttled_requests_total",
			"Requests rejected with 429 because of overdue requests, by limit: of the user or of the logical cluster.", "limit"),
	}
}

// Throttle returns the filter that rejects requests because of overdue requests.
func (d *Watchdog) Throttle(next http.Handler, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if limit, why := d.exceeded(r.Context()); limit != "" {
			d.throttled.WithLabelValues(limit).Inc()
			refuse(w, r, why)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (d *Watchdog) exceeded(ctx context.Context) (limit, why string) {
	if identity.IsExempt(ctx) {
		return "", ""
	}
	h := ledger.HolderOf(ctx)
	switch ofUser, ofCluster := d.requests.HeldBy(h); {
	case ofUser > 0:
		return "user", "a request of this user is still being executed after its end"
	case ofCluster >= perCluster && !request.IsSystem(h.Cluster) && h.Cluster != core.RootCluster:
		return "cluster", "requests for this logical cluster are still being executed after their end"
	default:
		return "", ""
	}
}

// Watch returns the filter that waits until a request no longer computes. It must come after limits and fairness.
func (d *Watchdog) Watch(next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := apirequest.RequestInfoFrom(ctx)
		if !ok || longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		defer d.follow(ctx, info)()
		switch info.Verb {
		case "create", "update", "patch", "delete", "deletecollection":
		default: // executed by the handlers themselves
			next.ServeHTTP(w, r)
			return
		}
		id, started := strconv.FormatUint(d.last.Add(1), 36), time.Now()
		pprof.SetGoroutineLabels(pprof.WithLabels(ctx, pprof.Labels(label, id)))
		defer pprof.SetGoroutineLabels(ctx)
		late := func() bool { return ctx.Err() != nil || time.Since(started) > handlerTimeout }
		response := &lateResponse{ResponseWriter: w, late: late}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(response), r)
		if late() {
			d.await(id)
		}
		response.send()
	})
}

// lateResponse holds a late response until send is called. If a response had begun at the deadline, upstream's
// timeout filter would reset the stream instead of returning 504.
type lateResponse struct {
	http.ResponseWriter

	late func() bool
	code int // 0 if the response is not held
	body bytes.Buffer
}

func (l *lateResponse) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *lateResponse) WriteHeader(code int) {
	if l.late() {
		l.code = code
		return
	}
	l.ResponseWriter.WriteHeader(code)
}

func (l *lateResponse) Write(data []byte) (int, error) {
	if l.code != 0 {
		return l.body.Write(data)
	}
	return l.ResponseWriter.Write(data)
}

func (l *lateResponse) send() {
	if l.code != 0 {
		l.ResponseWriter.WriteHeader(l.code)
		_, _ = l.ResponseWriter.Write(l.body.Bytes())
	}
}

// follow counts a request as overdue from the grace period after the end of its context until ended is called.
func (d *Watchdog) follow(ctx context.Context, info *apirequest.RequestInfo) (ended func()) {
	done, followed := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(followed)
		select {
		case <-done:
		case <-time.After(d.gracePeriod):
			klog.FromContext(ctx).Info("Request is still being executed after its end", "verb", info.Verb, "path", info.Path)
			d.overdue.Inc()
			defer d.overdue.Dec()
			d.overdueTotal.Inc()
			if !identity.IsExempt(ctx) {
				give, _ := d.requests.TakeFor(ctx, 1) // there are no limits
				defer give()
			}
			<-done
		}
	})
	return func() {
		close(done)
		if !stop() {
			<-followed
		}
	}
}

func (d *Watchdog) await(id string) {
	for {
		if _, running := d.takeProfile(time.Now())[id]; !running {
			return
		}
	}
}

// takeProfile returns the requests with a write in progress at some time after since.
func (d *Watchdog) takeProfile(since time.Time) map[string]struct{} {
	d.profiling.Lock()
	defer d.profiling.Unlock()
	if d.profiled.After(since) { // another call took a profile meanwhile
		return d.running
	}
	<-time.After(time.Until(d.profiled.Add(d.pause)))
	d.profiled = time.Now()
	d.running = executing()
	d.pause = max(period, share*time.Since(d.profiled))
	return d.running
}

func executing() map[string]struct{} {
	found := map[string]struct{}{}
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return found // a buffer returns no errors
	}
	// Goroutines with equal stack and labels form a paragraph with the labels in JSON.
	for of := range strings.SplitSeq(profile.String(), "\n\n") {
		_, after, labelled := strings.Cut(of, `"`+label+`":"`)
		if id, _, ok := strings.Cut(after, `"`); labelled && ok && (strings.Contains(of, finishing) || isCut(of)) {
			found[id] = struct{}{}
		}
	}
	return found
}

// isCut reports whether the profile may lack the outermost functions of a stack, because it contains at most 128.
func isCut(of string) bool {
	const complete = 120
	return strings.Count(of, "\n") >= complete
}
