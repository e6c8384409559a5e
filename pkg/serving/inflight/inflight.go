// Package inflight bounds the requests that a server executes at a time.
//
//	authorization ─► ledger ─► fairness ─► Executing.Wrap ─► handler
//	                 by logical   queue        of the server
//	                 cluster, user
//
// Requests that wait in the queue of fairness or for a webhook are not counted, because they
// take nothing that others need. The ledger counts them for their logical cluster and their user
// from authorization to the answer, so a logical cluster whose requests hang reaches its own
// limits and not those of others.
//
// The requests of the installation's own components are neither counted nor refused: what
// they write for one tenant takes no place of another.
package inflight

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// Executing bounds the requests that execute at a time in a server.
type Executing struct {
	reading, writing kind
	rejected         *prometheus.CounterVec
}

// kind is the requests that read, or those that write.
type kind struct {
	limit int64
	now   atomic.Int64
	// most is the highest number since it was last reported.
	most atomic.Int64
}

// NewExecuting returns bounds for requests that read and for those that write; 0
// bounds nothing. registerer may be nil.
func NewExecuting(reading, writing int, registerer prometheus.Registerer) *Executing {
	e := &Executing{rejected: ledger.NewRejected(registerer)}
	e.reading.limit, e.writing.limit = int64(reading), int64(writing)
	return e
}

// Wrap returns next behind the bounds. A request that pauses, see request.Pause,
// is not counted meanwhile.
func (e *Executing) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := apirequest.RequestInfoFrom(ctx)
		if !ok || longRunning(r, info) || identity.IsExempt(ctx) {
			next.ServeHTTP(w, r)
			return
		}
		k := &e.writing
		if reads(info.Verb) {
			k = &e.reading
		}
		if !k.enter() {
			k.leave()
			e.rejected.WithLabelValues("max-requests-inflight").Inc()
			apimetrics.RecordDroppedRequest(r, info, apimetrics.APIServerComponent, k == &e.writing)
			apimetrics.RecordRequestTermination(r, info, apimetrics.APIServerComponent, http.StatusTooManyRequests)
			refuse(w, r, "the server has as many requests in hand as --max-requests-inflight and --max-mutating-requests-inflight allow")
			return
		}
		defer k.leave()
		next.ServeHTTP(w, r.WithContext(request.WithPause(ctx, func() (resume func()) {
			resumeSeat := request.Pause(ctx)
			k.leave()
			return func() {
				resumeSeat() // which may wait
				k.enter()
			}
		})))
	})
}

// Report sets upstream's gauges of requests in flight, each second, until ctx is
// done.
func (e *Executing) Report(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			apimetrics.UpdateInflightRequestMetrics(apimetrics.ExecutingPhase, e.reading.highest(), e.writing.highest())
		case <-ctx.Done():
			return
		}
	}
}

// enter counts a request and reports whether it is within the limit.
func (k *kind) enter() bool {
	now := k.now.Add(1)
	within := k.limit == 0 || now <= k.limit
	for within {
		if most := k.most.Load(); now <= most || k.most.CompareAndSwap(most, now) {
			break
		}
	}
	return within
}

func (k *kind) leave() { k.now.Add(-1) }

// highest returns the highest number since it was last called.
func (k *kind) highest() int { return int(k.most.Swap(k.now.Load())) }

// reads reports whether requests with that verb change nothing.
func reads(verb string) bool {
	switch verb {
	case "get", "list", "watch":
		return true
	default:
		return false
	}
}
