package answers

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/budget"
)

const (
	// pauseAfter is how long a write takes before its request lets others have its seat:
	// longer than one that a client is waiting for.
	pauseAfter = 10 * time.Millisecond
	// unsent is how much of an answer the HTTP server takes before a write waits.
	unsent = 2 << 10
)

// unread bounds what is in memory of answers that wait for clients to read: each write that
// waits keeps what it writes, which may be a whole list, and has no seat that would bound how
// many there are. An answer that is longer than all of one user may be counts as long as that.
var unread = budget.Limits{Total: 512 << 20, Each: 128 << 20, Own: 16 << 20}

// compressed are how many answers at a time are compressed that are encoded as a whole: of such a
// one only what is compressed already is seen to wait, and not what it keeps.
var compressed = budget.Limits{Total: 8, Each: 2}

// WithPause returns next for requests that pause, see request.Pause, while a client
// does not read. Where too much waits for clients of one user, or in all, the answer is
// given up instead.
func WithPause(next http.Handler) http.Handler { return withPause(next, unread) }

func withPause(next http.Handler, limits budget.Limits) http.Handler {
	waiting, packed := budget.New[identity.Payer](limits), budget.New[identity.Payer](compressed)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		g, _ := ctx.Value(guardKey{}).(*guard)
		p := &pausingWriter{ResponseWriter: w, pause: func(bytes int) (resume func()) {
			if !isOwn(ctx) || g == nil || g.lasts() || identity.IsExempt(ctx) { // watches have bounds of their own
				return request.Pause(ctx)
			}
			payer, n := identity.PayerFrom(ctx), min(int64(bytes), limits.Each)
			if !waiting.Take(payer, n) {
				g.giveUp()
				return func() {}
			}
			resume = request.Pause(ctx)
			return func() {
				waiting.Give(payer, n)
				resume()
			}
		}}
		if isOwn(ctx) && isWhole(r) && !identity.IsExempt(ctx) {
			if payer := identity.PayerFrom(ctx); packed.Take(payer, 1) {
				defer packed.Give(payer, 1)
			} else {
				r = r.WithContext(ctx)
				r.Header = r.Header.Clone()
				r.Header.Del("Accept-Encoding")
			}
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(p), r)
	})
}

// isOwn reports whether the answer to the request of ctx is made for it alone: those with
// documents, such as the schemas of all kinds, are shared.
func isOwn(ctx context.Context) bool {
	info, ok := apirequest.RequestInfoFrom(ctx)
	return ok && info.IsResourceRequest
}

// isWhole reports whether the answer may be encoded as a whole and compressed: lists are encoded
// object by object as JSON and protobuf only, if they are not asked for as something else.
func isWhole(r *http.Request) bool {
	if r.Header.Get("Accept-Encoding") == "" {
		return false
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "as=") || strings.Contains(accept, "cbor") || strings.Contains(accept, "yaml")
}

// pausingWriter pauses its request while a write takes long.
type pausingWriter struct {
	http.ResponseWriter
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
		w.timer = time.AfterFunc(pauseAfter, w.slow)
		return
	}
	w.timer.Reset(pauseAfter)
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
