// Package watchdog handles requests that go on computing after their context has ended, because the
// client has disconnected or the deadline has passed. Libraries that validate, convert or apply objects
// do not look at contexts. Such a request is overdue:
//
//   - it keeps its seat and counts as in flight until it ends, so that it cannot be repeated without a
//     limit;
//   - its user, and its logical cluster if several are overdue there, get 429 until then;
//   - it is counted in metrics.
//
// The handlers of k8s.io/apiserver execute writes in a goroutine of their own, which they leave behind
// when the context ends. Such goroutines are found by a label in the goroutine profile, because the
// handlers report nothing about them. A profile is only made while requests have ended that way, and
// takes 5 % of the time of one core at most.
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

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/prometheus/client_golang/prometheus"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

const (
	// gracePeriod is how long a request may take to end after its context.
	gracePeriod = time.Second
	// handlerTimeout is after what time the handlers of k8s.io/apiserver leave a write behind, even if
	// its context has not ended. It is a little less than theirs.
	handlerTimeout = 30 * time.Second
	// period is the least time between two profiles, and share what a profile may take of it.
	period = 100 * time.Millisecond
	share  = 20
	// perCluster is how many overdue requests of a logical cluster throttle all of its users. One does
	// not, because a single user could have all others refused.
	perCluster = 2

	// label is the label of the goroutines of a request, and finishing is in the stacks of those that
	// execute a write.
	label     = "shardplane-request"
	finishing = "k8s.io/apiserver/pkg/endpoints/handlers/finisher."
)

// metrics are those of a server.
type metrics struct {
	overdue      prometheus.Gauge
	overdueTotal prometheus.Counter
	throttled    *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	const namespace, subsystem = "shardplane", "watchdog"
	return metrics{
		overdue: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "overdue_requests",
			Help: "[ALPHA] Requests that still compute although their context has ended.",
		})),
		overdueTotal: instruments.Register(registerer, prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "overdue_requests_total",
			Help: "[ALPHA] Requests that still computed a second after their context had ended.",
		})),
		throttled: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "throttled_requests_total",
			Help: "[ALPHA] Requests answered with 429 because overdue requests of the user, or of the logical cluster, still compute.",
		}, []string{"limit"})),
	}
}

// Config has the durations that tests set.
type Config struct {
	// GracePeriod is how long a request may take to end after its context; 1 s if 0.
	GracePeriod time.Duration
	// Metrics registers the metrics; nil registers none.
	Metrics prometheus.Registerer
}

// Watchdog knows the overdue requests of a server.
type Watchdog struct {
	config  Config
	metrics metrics
	last    atomic.Uint64

	mu       sync.Mutex
	flows    map[identity.Flow]int
	clusters map[logicalcluster.Name]int

	looking sync.Mutex
	looked  time.Time
	pause   time.Duration
	running map[string]struct{}
}

// New returns a watchdog that has seen no requests.
func New(config Config) *Watchdog {
	if config.GracePeriod == 0 {
		config.GracePeriod = gracePeriod
	}
	return &Watchdog{config: config, metrics: newMetrics(config.Metrics), flows: map[identity.Flow]int{}, clusters: map[logicalcluster.Name]int{}}
}

// Throttle returns next behind the refusal of requests of whom overdue requests still compute.
func (d *Watchdog) Throttle(next http.Handler, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if limit, why := d.exceeded(r.Context()); limit != "" {
			d.metrics.throttled.WithLabelValues(limit).Inc()
			refuse(w, r, why)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// exceeded returns which limit refuses a request, and why.
func (d *Watchdog) exceeded(ctx context.Context) (limit, why string) {
	if identity.IsExempt(ctx) {
		return "", ""
	}
	cluster, _ := request.ClusterFrom(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.flows[identity.FlowFrom(ctx)] > 0:
		return "user", "a request of this user still computes although it has ended"
	case d.clusters[cluster.Name] >= perCluster && !request.IsSystem(cluster.Name) && cluster.Name != core.RootCluster:
		return "cluster", "requests for this logical cluster still compute although they have ended"
	default:
		return "", ""
	}
}

// Watch returns next as it is watched. It returns when a request computes no more, so that it stands
// behind all that counts requests and gives them seats.
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
		default: // the handlers execute it themselves
			next.ServeHTTP(w, r)
			return
		}
		id, started := strconv.FormatUint(d.last.Add(1), 36), time.Now()
		pprof.SetGoroutineLabels(pprof.WithLabels(ctx, pprof.Labels(label, id)))
		defer pprof.SetGoroutineLabels(ctx)
		next.ServeHTTP(w, r)
		if ctx.Err() != nil || time.Since(started) > handlerTimeout {
			d.await(id)
		}
	})
}

// follow counts a request as overdue from some time after the end of its context until ended is called.
func (d *Watchdog) follow(ctx context.Context, info *apirequest.RequestInfo) (ended func()) {
	var (
		mu          sync.Mutex
		done, count bool
		timer       *time.Timer
	)
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return
		}
		timer = time.AfterFunc(d.config.GracePeriod, func() {
			mu.Lock()
			defer mu.Unlock()
			if count = !done; count {
				klog.FromContext(ctx).Info("A request still computes after its end", "verb", info.Verb, "path", info.Path)
				d.add(ctx, 1)
			}
		})
	})
	return func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		done = true
		if timer != nil {
			timer.Stop()
		}
		if count {
			d.add(ctx, -1)
		}
	}
}

// add counts an overdue request (1), or the end of one (-1).
func (d *Watchdog) add(ctx context.Context, n int) {
	d.metrics.overdue.Add(float64(n))
	if n > 0 {
		d.metrics.overdueTotal.Inc()
	}
	if identity.IsExempt(ctx) {
		return
	}
	cluster, _ := request.ClusterFrom(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d.flows, identity.FlowFrom(ctx), n)
	change(d.clusters, cluster.Name, n)
}

func change[K comparable](counts map[K]int, key K, n int) {
	if counts[key] += n; counts[key] <= 0 {
		delete(counts, key)
	}
}

// await returns when no goroutine executes the write of a request any more.
func (d *Watchdog) await(id string) {
	for {
		if _, running := d.look(time.Now())[id]; !running {
			return
		}
	}
}

// look returns the requests whose write a goroutine executes, as of some time after since.
func (d *Watchdog) look(since time.Time) map[string]struct{} {
	d.looking.Lock()
	defer d.looking.Unlock()
	if d.looked.After(since) { // while this waited for another one
		return d.running
	}
	<-time.After(time.Until(d.looked.Add(d.pause)))
	d.looked = time.Now()
	d.running = executing()
	d.pause = max(period, share*time.Since(d.looked))
	return d.running
}

// executing returns the requests whose write a goroutine executes.
func executing() map[string]struct{} {
	found := map[string]struct{}{}
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return found // a buffer takes all
	}
	// Goroutines with the same stack and labels are a paragraph: the labels as JSON, and the stack.
	for of := range strings.SplitSeq(profile.String(), "\n\n") {
		_, after, labelled := strings.Cut(of, `"`+label+`":"`)
		if id, _, ok := strings.Cut(after, `"`); labelled && ok && (strings.Contains(of, finishing) || isCut(of)) {
			found[id] = struct{}{}
		}
	}
	return found
}

// isCut reports whether a stack is so deep that the profile, which has 128 functions of it, may lack the
// outermost ones.
func isCut(of string) bool {
	const complete = 120
	return strings.Count(of, "\n") >= complete
}
