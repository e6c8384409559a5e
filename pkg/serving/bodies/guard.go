package bodies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// ErrSlow is the error of reading a body that is given up.
var ErrSlow = fmt.Errorf("the request body did not arrive in time: it must arrive within %s and at %d bytes per second or faster", NewRate().Timeout, NewRate().MinRate)

const (
	// rateWindow is the time over which the rate of a body counts.
	rateWindow = 10 * time.Second
	// lingering is how long the rest of a body that nobody wants may take, until the
	// connection is closed.
	lingering = 5 * time.Second
)

// Guard bounds how long a body takes once somebody reads it. It is the body of the
// request that it is made for.
type Guard struct {
	io.Reader

	limits Rate
	// closeBody closes the body, once: where that does not wait for a Read, giveUp
	// does so too.
	closeBody func() error
	// giveUp makes a Read end that is under way.
	giveUp func()

	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer
	// read is how much has come, checked how much of it when the rate was looked at.
	read, checked int64
	slow, ended   bool
}

// Rate says how long bodies take at most, and how fast they come at least.
type Rate struct {
	// Timeout is for a whole body; 0 is any time.
	Timeout time.Duration
	// MinRate is in bytes per second, over ten seconds; 0 is any.
	MinRate int
}

// NewRate returns the defaults: they leave a quarter of the minute that a request
// has to the request itself.
func NewRate() Rate { return Rate{Timeout: 45 * time.Second, MinRate: 1 << 10} }

// WithGuard returns next for requests whose bodies are guarded. It stands before
// all filters that put something around the connection.
func WithGuard(next http.Handler, limits Rate) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !In(r) {
			next.ServeHTTP(w, r)
			return
		}
		g := &Guard{Reader: r.Body, limits: limits, closeBody: sync.OnceValue(r.Body.Close)}
		g.giveUp = func() { _ = g.closeBody() } // a pipe
		if r.ProtoMajor == 1 {
			g.giveUp = func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) }
		}
		// A copy, since the server looks at what it has made itself.
		guarded := r.WithContext(context.WithValue(r.Context(), guardKey{}, g))
		guarded.Body = g
		defer g.leave(w, r)
		next.ServeHTTP(w, guarded)
	})
}

type guardKey struct{}

// Slow reports whether the body of a request was given up.
func Slow(ctx context.Context) bool {
	g, ok := ctx.Value(guardKey{}).(*Guard)
	if !ok {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slow
}

// In reports whether a request has a body.
func In(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// Read implements io.Reader.
func (g *Guard) Read(p []byte) (int, error) {
	if err := g.start(); err != nil {
		return 0, err
	}
	n, err := g.Reader.Read(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.read += int64(n)
	if err != nil {
		g.end()
	}
	if g.slow && !errors.Is(err, io.EOF) {
		err = ErrSlow
	}
	return n, err
}

// Close implements io.Closer. The time goes on while it waits for a Read.
func (g *Guard) Close() error {
	err := g.closeBody()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end()
	return err
}

// start lets the time run from the first Read.
func (g *Guard) start() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.slow:
		return ErrSlow
	case g.ended || g.timer != nil:
		return nil
	}
	if g.limits.Timeout > 0 {
		g.deadline = time.Now().Add(g.limits.Timeout)
	}
	if wait := g.wait(); wait > 0 {
		g.timer = time.AfterFunc(wait, g.check)
	}
	return nil
}

// wait returns when the body is to be looked at next; 0 for never.
func (g *Guard) wait() time.Duration {
	wait := time.Duration(0)
	if g.limits.MinRate > 0 {
		wait = rateWindow
	}
	if left := time.Until(g.deadline); g.limits.Timeout > 0 && (wait == 0 || left < wait) {
		wait = max(left, 1)
	}
	return wait
}

// check gives the body up if it is late or slow.
func (g *Guard) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	late := g.limits.Timeout > 0 && !time.Now().Before(g.deadline)
	if late || g.read-g.checked < int64(g.limits.MinRate)*int64(rateWindow/time.Second) {
		g.slow = true
		g.giveUp()
		return
	}
	g.checked = g.read
	g.timer.Reset(g.wait())
}

// end stops the time. The caller holds the lock.
func (g *Guard) end() {
	g.ended = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

// leave is for when the request is answered. The server reads the rest of a body
// then, to use an HTTP/1.1 connection again.
func (g *Guard) leave(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	whole := g.ended && !g.slow
	g.end()
	if !whole && r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lingering))
	}
}
