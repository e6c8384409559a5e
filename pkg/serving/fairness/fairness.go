package fairness

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/utils/clock"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// waitLimit bounds how long requests without a deadline, watches, wait for their
// turn; others wait for a quarter of their time at most.
const waitLimit = 15 * time.Second

// Priorities.
const (
	// exempt are the installation's own components and its administrators, which
	// never wait: as Kubernetes' priority level of that name.
	exempt = "exempt"
)

// level is a priority in upstream's terms.
type level struct {
	schema *flowcontrolv1.FlowSchema
	config *flowcontrolv1.PriorityLevelConfiguration
}

func newLevel(name string) level {
	meta := metav1.ObjectMeta{Name: name, UID: types.UID("shardplane-" + name)}
	return level{&flowcontrolv1.FlowSchema{ObjectMeta: meta}, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: meta}}
}

// Fairness decides when requests may execute.
type Fairness struct {
	queue           *Queue
	costs           *costs
	metrics         metrics
	exempt, tenants level
}

// New returns fairness within those limits. registerer may be nil.
func New(limits Limits, registerer prometheus.Registerer) *Fairness {
	m := newMetrics(registerer)
	return &Fairness{metrics: m, queue: NewQueue(limits, clock.RealClock{}, m.pausedRequests), costs: newCosts(), exempt: newLevel(exempt), tenants: newLevel(tenants)}
}

// Wrap returns next behind the queue. Requests that are refused get 429 with
// Retry-After. Of watches only the beginning takes a seat; other long-running
// requests take none.
func (f *Fairness) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	fair := genericfilters.WithPriorityAndFairness(f.learning(next), longRunning, controller{f}, f.costs.estimate, waitLimit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &place{}
		ctx := context.WithValue(request.WithPause(r.Context(), p.pause), placeKey{}, p)
		fair.ServeHTTP(w, r.WithContext(ctx))
	})
}

type placeKey struct{}

// place takes what the queue gives a request to what executes it: upstream's
// filter, which stands between the two, has no way for it.
type place struct{ seat *Seat }

func (p *place) pause() (resume func()) {
	if p.seat == nil {
		return func() {} // exempt
	}
	return p.seat.Pause()
}

// learning measures lists.
func (f *Fairness) learning(next http.Handler) http.Handler {
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
			f.costs.learn(r, cluster, info, counted.bytes)
		}
	})
}

// countingWriter counts the bytes of an answer.
type countingWriter struct {
	http.ResponseWriter
	bytes int64
	code  int
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *countingWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *countingWriter) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// controller is what upstream's filter asks.
type controller struct{ *Fairness }

var _ flowcontrol.Interface = controller{}

// Handle implements flowcontrol.Interface.
func (c controller) Handle(
	ctx context.Context,
	digest flowcontrol.RequestDigest,
	note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	estimate func() fcrequest.WorkEstimate,
	queued fq.QueueNoteFn,
	execute func(),
) {
	if identity.IsExempt(ctx) {
		note(c.exempt.schema, c.exempt.config, "")
		defer c.metrics.executing(exempt, 1)()
		execute()
		return
	}
	note(c.tenants.schema, c.tenants.config, "")
	work := estimate()
	arrived := time.Now()
	seat, err := c.queue.Acquire(ctx, flowOf(ctx, digest.RequestInfo), digest.User.GetName(), int(work.InitialSeats), func(waits bool) { //nolint:gosec // at most maxSeats
		queued(waits)
		c.metrics.waiting(waits)
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
	if place, ok := ctx.Value(placeKey{}).(*place); ok {
		place.seat = seat
	}
	defer c.metrics.executing(tenants, int(work.InitialSeats))() //nolint:gosec // at most maxSeats
	execute()
}

// flowOf returns the flow of a request. A logical cluster has two, one for what
// reads and one for what writes: these wait for the disk, and must not keep
// their owner from reading.
func flowOf(ctx context.Context, info *apirequest.RequestInfo) FlowKey {
	cluster, _ := request.ClusterFrom(ctx)
	key := FlowKey{Cluster: cluster.String()}
	switch info.Verb {
	case "get", "list", "watch":
	default:
		key.Writes = true
	}
	return key
}

// RegisterWatch implements flowcontrol.WatchTracker.
func (c controller) RegisterWatch(r *http.Request) flowcontrol.ForgetWatchFunc {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	cluster, in := request.ClusterFrom(r.Context())
	// What is spent on watchers of all logical clusters is nobody's cost.
	if !ok || !in || cluster.Wildcard {
		return nil
	}
	return c.costs.watched(collectionOf(cluster, info))
}

// GetInterestedWatchCount implements flowcontrol.WatchTracker. Estimates do not
// ask it, since it cannot know for which logical cluster.
func (c controller) GetInterestedWatchCount(*apirequest.RequestInfo) int { return 0 }

// GetMaxSeats implements flowcontrol.MaxSeatsTracker.
func (c controller) GetMaxSeats(string) uint64 { return maxSeats }

// SetMaxSeats implements flowcontrol.MaxSeatsTracker; limits do not change.
func (c controller) SetMaxSeats(string, uint64) {}

// ForgetPriorityLevel implements flowcontrol.MaxSeatsTracker; levels stay.
func (c controller) ForgetPriorityLevel(string) {}

// Run implements flowcontrol.Interface; there is no configuration to follow.
func (c controller) Run(<-chan struct{}) error { return nil }

// Install implements flowcontrol.Interface; metrics say what there is to say.
func (c controller) Install(*mux.PathRecorderMux) {}
