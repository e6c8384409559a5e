package answers

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

const (
	// pauseAfter is how long a write takes before its request lets others have its seat:
	// longer than one that a client is waiting for.
	pauseAfter = 10 * time.Millisecond
	// unsent is how much of an answer the HTTP server takes before a write waits.
	unsent = 2 << 10
)

// WithPause returns next for requests that pause, see request.Pause, while a client
// does not read. Where too much waits for clients of one user, or in all, the answer is
// given up instead.
func WithPause(next http.Handler) http.Handler { return withPause(next, newUnread(unreadBytes)) }

func withPause(next http.Handler, unread *unread) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		p := &pausingWriter{ResponseWriter: w, after: pauseAfter, pause: func(int) (resume func()) { return request.Pause(ctx) }}
		if g, ok := bounded(ctx); ok {
			p.pause = func(bytes int) (resume func()) { return unread.pause(ctx, g, bytes) }
			var end func()
			r, end = unread.compress(r)
			defer end()
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(p), r)
	})
}

// forwarded bounds what is in memory of answers of other servers, which come ahead of what clients read.
var forwarded = ledger.Bounds{Total: 1 << 30, User: 256 << 20, Own: 16 << 20}

// forwardedAfter is how long a write of a forwarded answer takes before that counts: many clients read through
// slow lines, and none of them has a seat here.
const forwardedAfter = time.Second

// WithForwarded returns next for requests whose answers come from other servers, watches as well: as long as a
// client does not read, so many bytes of each are in memory. Where that is too much of one user, or in all, the
// answer is given up.
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
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&pausingWriter{ResponseWriter: w, after: forwardedAfter, pause: func(bytes int) (resume func()) {
			return unread.pause(ctx, g, max(bytes, ahead))
		}}), r)
	})
}

// pausingWriter pauses its request while a write takes long.
type pausingWriter struct {
	http.ResponseWriter
	// after is when it does.
	after   time.Duration
	pause   func(bytes int) (resume func())
	written int

	mu      sync.Mutex
	timer   *time.Timer
	waiting bool
	// bytes is how much the write that is under way writes.
	bytes  int
	resume func()
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *pausingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *pausingWriter) Write(p []byte) (int, error) {
	if w.written += len(p); w.written > unsent {
		w.begin(len(p))
		defer w.end()
	}
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *pausingWriter) Flush() {
	w.begin(0)
	defer w.end()
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *pausingWriter) begin(bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting, w.bytes = true, bytes
	if w.timer == nil {
		w.timer = time.AfterFunc(w.after, w.slow)
		return
	}
	w.timer.Reset(w.after)
}

// slow is for a write that has taken long.
func (w *pausingWriter) slow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting && w.resume == nil {
		w.resume = w.pause(w.bytes)
	}
}

func (w *pausingWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = false
	w.timer.Stop()
	if w.resume != nil {
		w.resume()
		w.resume = nil
	}
}
