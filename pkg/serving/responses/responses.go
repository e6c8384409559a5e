// Package responses limits the resources that slow or blocked clients use while responses are written.
//
//	listener ─► WithGuard ─► … ─► WithStreams ─► … ─► limits, fairness ─► WithPause ─► handler
//	            deadline of       deadline of         a seat, which is
//	            responses         each write          released while a write blocks
//
// Bytes that cannot be written stay in memory until the write fails after a deadline. Until then, the request has no
// seat, and its bytes are limited for each user and in total. The front-proxy uses WithForwarded instead of WithPause.
package responses

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

const (
	// longest limits the time until the end of a response. It is longer than the request timeout of a shard.
	//
	//reference:limit request | response: time until the client has read it, except watches | the connection ends
	longest = 2 * time.Minute
	// stalled limits one write of a watch, and the remaining time when a response is complete.
	//
	//reference:limit watch | time of a write to the client | the watch ends
	stalled = time.Minute
)

type guard struct {
	control *http.ResponseController

	mu    sync.Mutex
	timer *time.Timer
	// perWrite is set if each write is limited instead of the response. since is the start of the current write.
	// timerRunning is set while the timer runs.
	perWrite, timerRunning bool
	since                  time.Time
}

type guardKey struct{}

// WithGuard returns the filter that ends slow responses. It must come before filters that wrap the ResponseWriter.
func WithGuard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &guard{control: http.NewResponseController(w), timerRunning: true}
		g.timer = time.AfterFunc(longest, g.check)
		defer g.leave(r)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), guardKey{}, g)))
	})
}

func (g *guard) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.perWrite {
		if g.since.IsZero() {
			g.timerRunning = false
			return
		}
		if remaining := stalled - time.Since(g.since); remaining > 0 {
			g.timer.Reset(remaining)
			return
		}
	}
	g.expire()
}

func (g *guard) expire() { _ = g.control.SetWriteDeadline(time.Unix(1, 0)) }

func (g *guard) isLimitedPerWrite() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.perWrite
}

// leave is called after the handler. The server then writes the rest.
func (g *guard) leave(r *http.Request) {
	g.timer.Stop()
	// Otherwise, a closed stream would remain in memory until the deadline.
	if r.Context().Err() == nil {
		_ = g.control.SetWriteDeadline(time.Now().Add(stalled))
	}
}

// Stream returns w for a long-running response: the time of each write is limited instead of the total.
func Stream(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	g, ok := r.Context().Value(guardKey{}).(*guard)
	if !ok {
		return w
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.perWrite = true
	return responsewriter.WrapForHTTP1Or2(&observedWriter{w, g})
}

// WithStreams returns the filter that calls Stream for long-running requests.
func WithStreams(next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && longRunning(r, info) {
			w = Stream(w, r)
		}
		next.ServeHTTP(w, r)
	})
}

func (g *guard) begin(int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = time.Now()
	if !g.timerRunning {
		g.timerRunning = true
		g.timer.Reset(stalled)
	}
}

func (g *guard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = time.Time{}
}

// observedWriter calls begin and end around each operation that may block.
type observedWriter struct {
	http.ResponseWriter
	by interface {
		begin(bytes int)
		end()
	}
}

func (w *observedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *observedWriter) Write(p []byte) (int, error) {
	w.by.begin(len(p))
	defer w.by.end()
	return w.ResponseWriter.Write(p)
}

func (w *observedWriter) Flush() {
	w.by.begin(0)
	defer w.by.end()
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

var (
	// unreadBytes limits the bytes of blocked writes, which may contain an entire list each, because their requests
	// have no seats. A larger response counts as the limit of a user.
	//
	//reference:limit server | responses that clients do not read (each user has at least `own`) | the connection ends
	unreadBytes = ledger.Bounds{Total: 512 << 20, User: 128 << 20, Own: 16 << 20}
	// compressed limits compressed responses that are encoded as a whole, whose size the writer cannot see.
	//
	//reference:none
	compressed = ledger.Bounds{Total: 8, User: 2}
)

type unread struct {
	most              int64 // per user
	bytes, compressed *ledger.Ledger
}

func newUnread(bounds ledger.Bounds) *unread {
	return &unread{most: bounds.User, bytes: ledger.NewLedger(bounds), compressed: ledger.NewLedger(compressed)}
}

// pause releases the seat of a request while bytes are blocked. If too much is blocked, it ends the response.
func (u *unread) pause(ctx context.Context, g *guard, bytes int) (resume func()) {
	give, err := u.bytes.TakeFor(ctx, min(int64(bytes), u.most))
	if err != nil {
		g.expire()
		return func() {}
	}
	resumeSeat := request.Pause(ctx)
	return func() {
		give()
		resumeSeat() // may block
	}
}

// compress returns r without Accept-Encoding if too many responses are being compressed. The caller must call end.
func (u *unread) compress(r *http.Request) (_ *http.Request, end func()) {
	if !isWhole(r) {
		return r, func() {}
	}
	if give, err := u.compressed.TakeFor(r.Context(), 1); err == nil {
		return r, give
	}
	r = r.Clone(r.Context())
	r.Header.Del("Accept-Encoding")
	return r, func() {}
}

// isWhole reports whether the response may be encoded as a whole and compressed. Lists are encoded
// object by object only in JSON without indentation and in protobuf.
func isWhole(r *http.Request) bool {
	if r.Header.Get("Accept-Encoding") == "" {
		return false
	}
	for clause := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		switch strings.TrimSpace(clause) {
		case "", "*/*", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf:
		default:
			return true
		}
	}
	// These are the criteria by which apimachinery indents JSON.
	agent := r.UserAgent()
	return strings.Contains(r.URL.RawQuery, "pretty") ||
		strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

const (
	// pauseAfter is how long a write may block before its seat is released.
	pauseAfter = 10 * time.Millisecond
	// unsent is how many bytes of a response the HTTP server buffers before a write can block.
	unsent = 2 << 10
)

// WithPause returns the filter that pauses requests (request.Pause) while a client does not read. If too many bytes
// are blocked, for one user or in total, it ends the response.
func WithPause(next http.Handler) http.Handler { return withPause(next, newUnread(unreadBytes)) }

func withPause(next http.Handler, unread *unread) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		p := &pauser{after: pauseAfter, pause: func(int) (resume func()) { return request.Pause(ctx) }}
		// Watches have their own limits, and the system has none.
		if g, ok := ctx.Value(guardKey{}).(*guard); ok && !g.isLimitedPerWrite() && !identity.IsExempt(ctx) {
			p.pause = func(bytes int) (resume func()) { return unread.pause(ctx, g, bytes) }
			var end func()
			r, end = unread.compress(r)
			defer end()
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&observedWriter{w, p}), r)
	})
}

var (
	// forwarded limits the bytes of forwarded responses that have been received but not read by clients.
	//
	//reference:limit server | responses that clients of a front-proxy do not read (each user has at least `own`) | the connection ends
	forwarded = ledger.Bounds{Total: 1 << 30, User: 256 << 20, Own: 16 << 20}
	// forwardedAfter is how long a write may block before its bytes are counted. It is longer than
	// pauseAfter, because many clients have slow connections, and these requests have no seats.
	forwardedAfter = time.Second
)

// WithForwarded returns the filter for responses from other servers, including watches. While a client does not
// read, ahead bytes are in memory. If this is too much, for one user or in total, the response ends.
func WithForwarded(next http.Handler, ahead int) http.Handler {
	return withForwarded(next, newUnread(forwarded), ahead)
}

func withForwarded(next http.Handler, unread *unread, ahead int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		g, ok := ctx.Value(guardKey{}).(*guard)
		if !ok || identity.IsExempt(ctx) {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&observedWriter{w, &pauser{after: forwardedAfter, pause: func(bytes int) (resume func()) {
			return unread.pause(ctx, g, max(bytes, ahead))
		}}}), r)
	})
}

// pauser pauses a request while a write blocks, from the first one that may block.
type pauser struct {
	after   time.Duration // until the pause
	pause   func(bytes int) (resume func())
	written int

	mu      sync.Mutex
	timer   *time.Timer
	waiting bool
	bytes   int // of the current write
	resume  func()
}

func (p *pauser) begin(bytes int) {
	if p.written += bytes; p.written <= unsent && bytes > 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting, p.bytes = true, bytes
	if p.timer == nil {
		p.timer = time.AfterFunc(p.after, p.slow)
		return
	}
	p.timer.Reset(p.after)
}

func (p *pauser) slow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting && p.resume == nil {
		p.resume = p.pause(p.bytes)
	}
}

func (p *pauser) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.waiting {
		return
	}
	p.waiting = false
	p.timer.Stop()
	if p.resume != nil {
		p.resume()
		p.resume = nil
	}
}

// leastEvent is the counted size of small events.
const leastEvent = 64 << 10

// WithWatchBytes returns the filter that limits the memory of large events of each logical cluster and user. A watch
// has buffers of the size of its largest event as long as it lasts, because encoders reuse them.
func WithWatchBytes(next http.Handler, held *ledger.Ledger, longRunning apirequest.LongRunningRequestCheck, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		holder := ledger.HolderOf(r.Context())
		if !ok || holder.Cluster == "" || !longRunning(r, info) || identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		if err := held.Take(holder, leastEvent); err != nil {
			refuse(w, r, err.Error())
			return
		}
		e := &eventWriter{ResponseWriter: w, held: held, holder: holder, largest: leastEvent}
		defer func() { held.Give(holder, e.largest) }()
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(e), r)
	})
}

type eventWriter struct {
	http.ResponseWriter
	held    *ledger.Ledger
	holder  ledger.Holder
	largest int64 // the counted size of the largest event
}

func (w *eventWriter) Write(p []byte) (int, error) {
	if more := int64(len(p)) - w.largest; more > 0 {
		if err := w.held.Take(w.holder, more); err != nil {
			return 0, err
		}
		w.largest += more
	}
	return w.ResponseWriter.Write(p)
}

func (w *eventWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
