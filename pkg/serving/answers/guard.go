package answers

import (
	"context"
	"net/http"
	"sync"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

const (
	// longest is how long an answer may take from the arrival of its request:
	// the minute that a request has at a shard, and what comes before and after it.
	longest = 2 * time.Minute
	// stalled is how long one write of a watch may take, and what is left when an
	// answer is complete.
	stalled = time.Minute
)

// guard bounds how long an answer takes.
type guard struct {
	control *http.ResponseController

	mu    sync.Mutex
	timer *time.Timer
	// perWrite is whether writes count and not the whole answer; since is when the
	// one began that is under way, if any, and armed whether timer runs.
	perWrite, armed bool
	since           time.Time
}

type guardKey struct{}

// WithGuard returns next for requests whose answers are given up when they take too
// long. It stands before all filters that put something around the connection.
func WithGuard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &guard{control: http.NewResponseController(w), armed: true}
		g.timer = time.AfterFunc(longest, g.check)
		defer g.leave(r)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), guardKey{}, g)))
	})
}

// check gives the answer up if it is late.
func (g *guard) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.perWrite {
		if g.since.IsZero() {
			g.armed = false
			return
		}
		if left := stalled - time.Since(g.since); left > 0 {
			g.timer.Reset(left)
			return
		}
	}
	g.giveUp()
}

// giveUp has a write end that waits for the client, and those after it.
func (g *guard) giveUp() { _ = g.control.SetWriteDeadline(time.Unix(1, 0)) }

// lasts reports whether the answer is one that lasts.
func (g *guard) lasts() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.perWrite
}

// leave is for when the handler has returned: the server writes the rest.
func (g *guard) leave(r *http.Request) {
	g.timer.Stop()
	// A stream that is closed would be kept until then.
	if r.Context().Err() == nil {
		_ = g.control.SetWriteDeadline(time.Now().Add(stalled))
	}
}

// Stream returns w for an answer that lasts: each write has its time, and not the
// whole.
func Stream(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	g, ok := r.Context().Value(guardKey{}).(*guard)
	if !ok {
		return w
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.perWrite = true
	return responsewriter.WrapForHTTP1Or2(&streamWriter{ResponseWriter: w, guard: g})
}

// WithStreams returns next for requests of which the long-running ones have answers
// that last.
func WithStreams(next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && longRunning(r, info) {
			w = Stream(w, r)
		}
		next.ServeHTTP(w, r)
	})
}

// begin and end are of one write.
func (g *guard) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = time.Now()
	if !g.armed {
		g.armed = true
		g.timer.Reset(stalled)
	}
}

func (g *guard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = time.Time{}
}

// streamWriter tells its guard when it writes.
type streamWriter struct {
	http.ResponseWriter
	guard *guard
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *streamWriter) Write(p []byte) (int, error) {
	w.guard.begin()
	defer w.guard.end()
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *streamWriter) Flush() {
	w.guard.begin()
	defer w.guard.end()
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}
