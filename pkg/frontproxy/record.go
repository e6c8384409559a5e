package frontproxy

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/serving/responses"
)

const (
	statusClientClosed = 499
	accessLogLevel     = 3
)

type recordKey struct{}

type record struct {
	http.ResponseWriter
	received                time.Time
	userInfo                user.Info
	shard, cluster, auditID string
	code                    int
	bytes                   int64
	// status is the response of the front-proxy itself, if any.
	status metav1.Status
	// forwarded is set if a shard has responded, and therefore audited the request.
	forwarded bool
}

func (rec *record) user() string {
	if rec.userInfo == nil {
		return ""
	}
	return rec.userInfo.GetName()
}

// recordFrom returns the record of a request, or an empty one.
func recordFrom(ctx context.Context) *record {
	if rec, ok := ctx.Value(recordKey{}).(*record); ok {
		return rec
	}
	return &record{received: time.Now()}
}

func recordOf(w http.ResponseWriter) *record {
	for {
		switch of := w.(type) {
		case *record:
			return of
		case interface{ Unwrap() http.ResponseWriter }:
			w = of.Unwrap()
		default:
			return nil
		}
	}
}

func (rec *record) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

func (rec *record) WriteHeader(code int) {
	if rec.code == 0 && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		rec.code = code
	}
	rec.ResponseWriter.WriteHeader(code)
}

func (rec *record) Write(p []byte) (int, error) {
	if rec.code == 0 {
		rec.code = http.StatusOK
	}
	n, err := rec.ResponseWriter.Write(p)
	rec.bytes += int64(n)
	return n, err
}

// codeLabel returns the metrics label of a status code. Because servers of tenants may return any
// number, all unknown codes share a label.
func codeLabel(code int) string {
	if http.StatusText(code) == "" && code != statusClientClosed {
		return "other"
	}
	return strconv.Itoa(code)
}

// withAccounting adds requests to running, including those with upgraded connections, which http.Server does not wait for.
func withAccounting(next http.Handler, m *metrics, running *waitgroup.SafeWaitGroup, audit func(r *http.Request, rec *record, received time.Time)) http.Handler {
	short, long := m.requestsInFlight.WithLabelValues("short"), m.requestsInFlight.WithLabelValues("long")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if running.Add(1) == nil { // the server does not wait for later ones
			defer running.Done()
		}
		start := time.Now()
		lasting := isWatch(r) || r.Header.Get("Upgrade") != ""
		inFlight := short
		if lasting {
			inFlight = long
			w = responses.Stream(w, r)
		}
		inFlight.Inc()
		rec := &record{ResponseWriter: w, received: start}
		defer func() { //nolint:contextcheck // it has the context of the request
			inFlight.Dec()
			if rec.code == 0 {
				rec.code = statusClientClosed
			}
			m.requestsTotal.WithLabelValues(rec.shard, codeLabel(rec.code)).Inc()
			audit(r, rec, start)
			took := time.Since(start)
			if !lasting {
				m.requestSeconds.WithLabelValues(rec.shard).Observe(took.Seconds())
			}
			if logger := klog.FromContext(r.Context()).V(accessLogLevel); logger.Enabled() {
				logger.Info("Request", "method", r.Method, "path", r.URL.Path, "query", r.URL.RawQuery, "code", rec.code,
					"user", rec.user(), "shard", rec.shard, "auditID", rec.auditID, "took", took, "bytes", rec.bytes, "agent", r.UserAgent(), "client", r.RemoteAddr)
			}
		}()
		next.ServeHTTP(rec, r.WithContext(context.WithValue(r.Context(), recordKey{}, rec)))
	})
}

type metrics struct {
	requestsTotal, upstreamErrors, indexWaits *prometheus.CounterVec
	requestSeconds                            *prometheus.HistogramVec
	requestsInFlight                          *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	return &metrics{
		requestsTotal: instruments.NewCounterVec(registerer, "shardplane_frontproxy_requests_total",
			"Requests, by shard (empty if the front-proxy itself responded) and status code.", "shard", "code"),
		upstreamErrors: instruments.NewCounterVec(registerer, "shardplane_frontproxy_upstream_errors_total",
			"Requests without a response from the shard, by shard and reason: unreachable (nothing was sent) or broken (the connection failed later).", "shard", "reason"),
		indexWaits: instruments.NewCounterVec(registerer, "shardplane_frontproxy_index_waits_total",
			"Requests for logical clusters that were unknown at first, by result: found, canceled (the client disconnected), timeout or throttled (too many pending requests).", "result"),
		requestSeconds: instruments.NewHistogramVec(registerer, []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
			"shardplane_frontproxy_request_duration_seconds", "Duration of requests other than watches and upgraded connections, by shard.", "shard"),
		requestsInFlight: instruments.NewGaugeVec(registerer, "shardplane_frontproxy_requests_in_flight",
			"Requests in flight, by kind: short or long (watches and upgraded connections).", "kind"),
	}
}
