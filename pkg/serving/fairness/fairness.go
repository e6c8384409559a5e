// Package fairness distributes the capacity of a server fairly among logical clusters: each gets the same share of
// the server's time. Requests that cannot be executed yet wait in one queue per logical cluster.
//
//	authorization ─► Fairness.Wrap ─► exempt?  ─────────────────────► handler
//	                                └► estimate seats ─► Queue ─► seat ─┘
//	                                         ▲                     │
//	                                         └──── actual cost ◄───┘
//
// It uses the filter of upstream's API Priority and Fairness with its own queue and estimates. Upstream's estimates
// sum up the objects and watches of all logical clusters, and unrelated flows share its queues. Here, a flow is the
// reads or the writes of a logical cluster.
//
// The share of a flow depends on whether other logical clusters send requests, see cost.go.
//
// The filter runs after authorization and the limits of users, so that other users cannot fill the queue of a
// logical cluster. It runs before the limit of the server, because queued requests use no shared resources.
package fairness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/utils/clock"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// waitLimit limits how long watches wait in the queue. Others wait for at most a quarter of their deadline.
//
//reference:limit request | queue: time of a watch (other requests: a quarter of their deadline) | 429
const waitLimit = 15 * time.Second

// exempt is the priority of the installation's own components and administrators, which never wait.
const exempt = "exempt"

var (
	exemptSchema, exemptLevel   = newLevel(exempt)
	tenantsSchema, tenantsLevel = newLevel(tenants)
)

func newLevel(name string) (*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration) {
	meta := metav1.ObjectMeta{Name: name, UID: types.UID("shardplane-" + name)}
	return &flowcontrolv1.FlowSchema{ObjectMeta: meta}, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: meta}
}

// Fairness decides when requests are executed.
type Fairness struct {
	queue   *Queue
	costs   *costs
	metrics metrics
}

// NewFairness returns a Fairness with the given limits. registerer may be nil.
func NewFairness(limits Limits, registerer prometheus.Registerer) *Fairness {
	m := newMetrics(registerer)
	return &Fairness{metrics: m, queue: NewQueue(limits, clock.RealClock{}, m.pausedRequests), costs: newCosts()}
}

// Wrap returns the filter that queues requests, or rejects them with 429. Watches use a seat only while they start,
// and other long-running requests use none.
func (f *Fairness) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	fair := genericfilters.WithPriorityAndFairness(f.recording(next), longRunning, controller{Fairness: f}, f.costs.estimate, waitLimit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var seat *Seat
		ctx := request.WithPause(r.Context(), func() (resume func()) {
			if seat == nil {
				return func() {} // exempt
			}
			return seat.Pause()
		})
		fair.ServeHTTP(w, r.WithContext(context.WithValue(ctx, seatKey{}, &seat)))
	})
}

// seatKey is the key of the seat in the context, because upstream's filter does not pass it to the handler.
type seatKey struct{}

func (f *Fairness) recording(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		cluster, in := request.ClusterFrom(r.Context())
		if !ok || !in || !info.IsResourceRequest || info.Verb != "list" {
			next.ServeHTTP(w, r)
			return
		}
		counted := &countingWriter{ResponseWriter: w}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(counted), r)
		if counted.code == http.StatusOK {
			f.costs.lists.Add(listKeyOf(r, cluster, info), counted.bytes)
		}
	})
}

type countingWriter struct {
	http.ResponseWriter
	bytes int64
	code  int
}

func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *countingWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.code = cmp.Or(w.code, http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// controller implements the methods of the interface that upstream's filter uses.
type controller struct {
	flowcontrol.Interface
	*Fairness
}

func (c controller) Handle(
	ctx context.Context,
	digest flowcontrol.RequestDigest,
	note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	estimate func() fcrequest.WorkEstimate,
	queued fq.QueueNoteFn,
	execute func(),
) {
	if identity.IsExempt(ctx) {
		note(exemptSchema, exemptLevel, "")
		defer c.metrics.executing(exempt, 1)()
		execute()
		return
	}
	note(tenantsSchema, tenantsLevel, "")
	work := estimate()
	arrived := time.Now()
	seat, err := c.queue.Acquire(ctx, flowOf(ctx, digest.RequestInfo), digest.User.GetName(), int(work.InitialSeats), func(waits bool) { //nolint:gosec // at most maxSeats
		queued(waits)
		change := -1.0
		if waits {
			change = 1
		}
		c.metrics.waitingRequests.WithLabelValues(tenants).Add(change)
	})
	if err != nil {
		reason := "queue-full"
		if errors.Is(err, errTimeout) {
			reason = "time-out"
		}
		c.metrics.rejected.WithLabelValues(tenants, reason).Inc()
		return
	}
	c.metrics.waitSeconds.WithLabelValues(tenants).Observe(time.Since(arrived).Seconds())
	defer seat.Release(float64(work.FinalSeats) * work.AdditionalLatency.Seconds())
	if held, ok := ctx.Value(seatKey{}).(**Seat); ok {
		*held = seat
	}
	defer c.metrics.executing(tenants, int(work.InitialSeats))() //nolint:gosec // at most maxSeats
	execute()
}

// flowOf returns the flow of a request. A logical cluster has separate flows for mutating requests,
// which wait for the disk and must not delay others.
func flowOf(ctx context.Context, info *apirequest.RequestInfo) FlowKey {
	cluster, _ := request.ClusterFrom(ctx)
	return FlowKey{Cluster: cluster.String(), Writes: info.Verb != "get" && info.Verb != "list" && info.Verb != "watch"}
}

func (c controller) RegisterWatch(r *http.Request) flowcontrol.ForgetWatchFunc {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	cluster, in := request.ClusterFrom(r.Context())
	// The cost of watches of all logical clusters is not added to a flow.
	if !ok || !in || cluster.Wildcard {
		return nil
	}
	return c.costs.watched(collectionOf(cluster, info))
}

// tenants is the priority of all requests that are not exempt.
const tenants = "tenants"

// metrics are by priority. They have no label for the tenant, because their number is not limited.
type metrics struct {
	executingSeats, waitingRequests *prometheus.GaugeVec
	pausedRequests                  prometheus.Gauge
	dispatched, rejected            *prometheus.CounterVec
	waitSeconds                     *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		executingSeats: instruments.NewGaugeVec(registerer, "shardplane_fairness_executing_seats",
			"Seats of requests that are being executed, by priority: exempt or tenants.", "priority"),
		waitingRequests: instruments.NewGaugeVec(registerer, "shardplane_fairness_waiting_requests",
			"Requests in the queue, by priority.", "priority"),
		pausedRequests: instruments.NewGauge(registerer, "shardplane_fairness_paused_requests",
			"Requests that wait for webhooks or clients, and have released their seats."),
		dispatched: instruments.NewCounterVec(registerer, "shardplane_fairness_dispatched_requests_total",
			"Requests that were dispatched, by priority.", "priority"),
		rejected: instruments.NewCounterVec(registerer, "shardplane_fairness_rejected_requests_total",
			"Requests rejected with 429, by priority and reason: queue-full or time-out.", "priority", "reason"),
		waitSeconds: instruments.NewHistogramVec(registerer, []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15},
			"shardplane_fairness_wait_duration_seconds", "Time of requests in the queue, by priority.", "priority"),
	}
}

func (m metrics) executing(priority string, seats int) (done func()) {
	m.dispatched.WithLabelValues(priority).Inc()
	gauge := m.executingSeats.WithLabelValues(priority)
	gauge.Add(float64(seats))
	return func() { gauge.Add(-float64(seats)) }
}

const (
	// seatsPerCore and leastSeats determine the default of --fairness-seats. There are more seats than cores,
	// because mutating requests mostly wait for the disk and for webhooks.
	seatsPerCore = 16
	leastSeats   = 32
	// coresPerFlowSeat determines the default of --fairness-seats-per-cluster: non-mutating and mutating
	// requests of a logical cluster together have as many seats as there are cores.
	coresPerFlowSeat = 2
	// fewCores is the number of cores up to which a single flood of requests occupies all of them. throttleOnFewCores
	// then limits it to a third of the time of its seats. With more cores, half of them stay idle.
	fewCores           = 3
	throttleOnFewCores = 2
)

const (
	//reference:limit shard | requests in the queue | 429
	maxWaiting = 1000
	//reference:limit cluster | requests in the queue | 429
	maxWaitingPerCluster = 200
	//reference:limit shard --fairness-paused-requests | requests that wait for webhooks or slow clients | others wait in the queue
	defaultPaused = 1000
)

// Options are the command line options.
//
//reference:limit shard --fairness-seats | concurrent requests; 0: 16 per core, at least 32 | others wait in the queue
//reference:limit cluster --fairness-seats-per-cluster | concurrent requests during contention; 0: half the cores, at least 1 | others wait in the queue
type Options struct {
	Enabled bool
	// Limits are the limits of the queue. If a number of seats is 0, it depends on the number of cores.
	Limits
}

// NewOptions returns the default options.
func NewOptions() Options {
	return Options{Enabled: true, Limits: Limits{Waiting: maxWaiting, FlowWaiting: maxWaitingPerCluster, Paused: defaultPaused, ThrottleFactor: throttleOn(cores())}}
}

// cores returns the number of usable cores. NumCPU is more than GOMAXPROCS if there is a CPU quota, and may be less.
func cores() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

func throttleOn(cores int) float64 {
	if cores <= fewCores {
		return throttleOnFewCores
	}
	return 0
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "enable-priority-and-fairness", o.Enabled, "fair distribution of the server's capacity among logical clusters; if false, only --max-requests-inflight and --max-mutating-requests-inflight limit them")
	fs.IntVar(&o.Seats, "fairness-seats", o.Seats, fmt.Sprintf("maximum number of concurrent requests, except those of the installation's own components; watches are only counted while they start, and large lists count up to %d-fold. 0 means %d per core, but at least %d", maxSeats, seatsPerCore, leastSeats))
	fs.IntVar(&o.FlowSeats, "fairness-seats-per-cluster", o.FlowSeats, "maximum number of concurrent non-mutating, and mutating, requests of a logical cluster while other logical clusters send requests; 0 means half the number of cores, but at least 1. Tenants with slow webhooks may need more")
	fs.IntVar(&o.Paused, "fairness-paused-requests", o.Paused, "maximum number of requests that wait for webhooks or slow clients and have released their seats; at most a fifth of them, and never all remaining ones, for one logical cluster. Other requests wait in the queue. 0 means no limit")
}

// Validate returns all errors in o.
func (o *Options) Validate() []error {
	var errs []error
	if o.Seats < 0 || o.FlowSeats < 0 {
		errs = append(errs, fmt.Errorf("--fairness-seats %d and --fairness-seats-per-cluster %d must not be negative", o.Seats, o.FlowSeats))
	}
	if o.Paused < 0 {
		errs = append(errs, fmt.Errorf("--fairness-paused-requests %d must not be negative", o.Paused))
	}
	return errs
}

// New returns nil if fairness is disabled. registerer may be nil.
func (o *Options) New(registerer prometheus.Registerer) *Fairness {
	if !o.Enabled {
		return nil
	}
	limits := o.Limits
	limits.Seats = cmp.Or(limits.Seats, max(leastSeats, seatsPerCore*cores()))
	limits.FlowSeats = min(limits.Seats, cmp.Or(limits.FlowSeats, max(1, cores()/coresPerFlowSeat)))
	limits.AloneSeats = min(limits.Seats, cmp.Or(limits.AloneSeats, limits.Seats/2))
	return NewFairness(limits, registerer)
}
