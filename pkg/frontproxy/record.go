package frontproxy

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/serving/answers"
)

const (
	// statusClientGone stands in metrics and logs for requests whose client
	// left before the answer.
	statusClientGone = 499
	// accessLogLevel is the verbosity at which every request is logged.
	accessLogLevel = 3
)

type recordKey struct{}

// record is what is known about a request when it ends.
type record struct {
	http.ResponseWriter
	// received is when the request came.
	received time.Time
	who      user.Info
	shard    string
	cluster  string
	auditID  string
	code     int
	bytes    int64
	// status is the answer that the front-proxy gave itself, if it did.
	status metav1.Status
	// answeredByShard is set once a shard has answered, which then has audited
	// the request.
	answeredByShard bool
}

// user returns the name of who has sent the request, where that is known.
func (rec *record) user() string {
	if rec.who == nil {
		return ""
	}
	return rec.who.GetName()
}

func recordFrom(ctx context.Context) *record {
	rec, _ := ctx.Value(recordKey{}).(*record)
	return rec
}

// recordOf returns the record that an answer is written through, or nil.
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

// Unwrap lets the response be flushed and hijacked.
func (rec *record) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (rec *record) WriteHeader(code int) {
	if rec.code == 0 && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		rec.code = code
	}
	rec.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (rec *record) Write(p []byte) (int, error) {
	if rec.code == 0 {
		rec.code = http.StatusOK
	}
	n, err := rec.ResponseWriter.Write(p)
	rec.bytes += int64(n)
	return n, err
}

// codeLabel returns what metrics call a status code. Tenants' webhooks, and servers that
// they mount, answer with any number; what is no code is one label.
func codeLabel(code int) string {
	if http.StatusText(code) == "" && code != statusClientGone {
		return "other"
	}
	return strconv.Itoa(code)
}

// withAccounting counts requests, keeps track of those that run, logs them at
// verbosity 3, and has audit see them when they end.
func withAccounting(next http.Handler, m *metrics, running *tracker, audit func(r *http.Request, rec *record, received time.Time)) http.Handler {
	short, long := m.requestsInFlight.WithLabelValues("short"), m.requestsInFlight.WithLabelValues("long")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer running.enter()()
		start := time.Now()
		lasting := isWatch(r) || r.Header.Get("Upgrade") != ""
		inFlight := short
		if lasting {
			inFlight = long
			w = answers.Stream(w, r)
		}
		inFlight.Inc()
		rec := &record{ResponseWriter: w, received: start}
		defer func() { //nolint:contextcheck // it has the context of the request
			inFlight.Dec()
			if rec.code == 0 {
				rec.code = statusClientGone
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

// tracker knows how many requests run. Unlike the HTTP server it also knows
// those whose connection was upgraded.
type tracker struct {
	mu      sync.Mutex
	running int
	idle    chan struct{}
}

func (t *tracker) enter() (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running--
		if t.running == 0 && t.idle != nil {
			close(t.idle)
			t.idle = nil
		}
	}
}

// wait waits until no request runs, but not longer than timeout.
func (t *tracker) wait(timeout time.Duration) {
	t.mu.Lock()
	if t.running == 0 {
		t.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	t.idle = idle
	t.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
