// Package inflight limits the requests that a server executes concurrently.
//
//	authorization ─► ledger ─► fairness ─► Executing.Wrap ─► handler
//	                 by logical   queue        of the server
//	                 cluster, user
//
// Requests that are queued by fairness or wait for a webhook are not counted, because they use no shared resources.
// The ledger counts them for their logical cluster and user from authorization to the response. A logical cluster
// with hanging requests therefore reaches its own limits and not those of others.
//
// Requests of the installation's own components are neither counted nor rejected, because their
// writes for one tenant do not affect others.
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

// Executing limits the concurrent requests of a server.
type Executing struct {
	reading, writing kind
	rejected         *prometheus.CounterVec
}

type kind struct {
	limit int64
	now   atomic.Int64
	// most is the maximum since the last report.
	most atomic.Int64
}

// NewExecuting returns limits for non-mutating and mutating requests; 0 means no limit. registerer may be nil.
func NewExecuting(reading, writing int, registerer prometheus.Registerer) *Executing {
	e := &Executing{rejected: ledger.NewRejected(registerer)}
	e.reading.limit, e.writing.limit = int64(reading), int64(writing)
	return e
}

// Wrap returns the filter that applies the limits. Paused requests, see request.Pause, are not counted.
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
		if !k.acquire() {
			k.release()
			e.rejected.WithLabelValues("max-requests-inflight").Inc()
			apimetrics.RecordDroppedRequest(r, info, apimetrics.APIServerComponent, k == &e.writing)
			apimetrics.RecordRequestTermination(r, info, apimetrics.APIServerComponent, http.StatusTooManyRequests)
			refuse(w, r, "the number of requests in flight would exceed --max-requests-inflight or --max-mutating-requests-inflight")
			return
		}
		defer k.release()
		next.ServeHTTP(w, r.WithContext(request.WithPause(ctx, func() (resume func()) {
			resumeSeat := request.Pause(ctx)
			k.release()
			return func() {
				resumeSeat() // may block
				k.acquire()
			}
		})))
	})
}

// Report sets upstream's gauges of requests in flight every second until ctx is done.
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

func (k *kind) acquire() bool {
	now := k.now.Add(1)
	within := k.limit == 0 || now <= k.limit
	for within {
		if most := k.most.Load(); now <= most || k.most.CompareAndSwap(most, now) {
			break
		}
	}
	return within
}

func (k *kind) release() { k.now.Add(-1) }

// highest returns the maximum since the last call.
func (k *kind) highest() int { return int(k.most.Swap(k.now.Load())) }

func reads(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }
