// Package bodies limits the resources that request bodies use while they arrive.
//
//	listener ─► guard ─► … ─► authorization ─► Read ─► limits, fairness ─► handler
//	            deadline and                  into memory,
//	            minimum rate                  within a limit
//
// A request gets a seat only when its body is in memory, which is limited for each user and in total. Reading a body
// fails if it takes too long or is too slow.
package bodies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

const (
	// overhead is counted for each body in addition to its bytes, for its goroutine and connection.
	overhead = 16 << 10
	// firstBuffer is the initial buffer size.
	firstBuffer = 64 << 10
	// spare is added to the buffer so that reading io.EOF needs no larger one.
	spare = 512
	// ownBodies is the minimum number of bodies of maximum size of each user, regardless of other users.
	ownBodies = 2
)

// Reader reads bodies before their requests are executed.
type Reader struct {
	largest      int64 // the maximum size of a body in bytes
	memory       *ledger.Ledger
	rejected     *prometheus.CounterVec
	waitingBytes prometheus.Gauge
}

// NewReader returns a reader of bodies of up to largest bytes. registerer may be nil.
func NewReader(l ledger.Limits, largest int64, registerer prometheus.Registerer) *Reader {
	own := ownBodies * (2*largest + overhead)
	if user := l[ledger.BodyBytesPerUser]; user > 0 {
		own = min(own, user)
	}
	return &Reader{
		largest: largest, memory: l.Ledger(ledger.BodyBytesResource, own, registerer),
		rejected: instruments.NewCounterVec(registerer, "shardplane_bodies_rejected_requests_total",
			"Requests rejected because of their body, by reason: slow, large, broken or values (too many values or YAML aliases, or a malformed Content-Type).", "reason"),
		waitingBytes: instruments.NewGauge(registerer, "shardplane_bodies_waiting_bytes",
			"Bytes of request bodies in memory, of requests whose body is being read or that are queued."),
	}
}

// Wrap returns the filter that reads bodies into memory. Bodies of long-running requests, and of verbs without body,
// are discarded, because they would fill the buffer of the HTTP/2 stream as long as the request lasts.
func (b *Reader) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck, refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !In(r) {
			next.ServeHTTP(w, r)
			return
		}
		var err error
		received := r.WithContext(r.Context())
		if r.Method == http.MethodGet || r.Method == http.MethodHead || longRunning(r, info) {
			received.Body, err = http.NoBody, b.drop(r)
		} else {
			read := &body{reader: b, holder: ledger.HolderOf(r.Context()), exempt: identity.IsExempt(r.Context())}
			defer func() { _ = read.Close() }()
			received.Body, err = read, read.fill(r)
			if invalid := checkValues(read.rest, r.Header.Get("Content-Type"), info.Resource, b.largest); invalid != nil {
				err = b.refusal("values", invalid)
			}
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, received)
	})
}

type body struct {
	reader *Reader
	holder ledger.Holder
	exempt bool

	mu    sync.Mutex
	taken int64
	rest  []byte
}

func (b *Reader) drop(r *http.Request) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r.Body, b.largest+1))
	switch {
	case err != nil:
		return b.unread(err)
	case n > b.largest:
		return b.tooLarge()
	default:
		return nil
	}
}

func (b *Reader) unread(err error) error {
	if errors.Is(err, ErrSlow) {
		return b.refusal("slow", request.StatusError(http.StatusRequestTimeout, metav1.StatusReasonTimeout, ErrSlow.Error()))
	}
	return b.refusal("broken", apierrors.NewBadRequest("the request body is incomplete"))
}

func (b *body) fill(r *http.Request) error {
	largest := b.reader.largest
	if r.ContentLength > largest {
		return b.reader.tooLarge()
	}
	size := int64(firstBuffer)
	if r.ContentLength > 0 {
		size = min(size, r.ContentLength+spare)
	}
	if err := b.take(overhead + size); err != nil {
		return err
	}
	data := make([]byte, 0, size)
	for {
		if len(data) == cap(data) {
			if err := b.take(int64(cap(data))); err != nil {
				return err
			}
			data = append(make([]byte, 0, 2*cap(data)), data...)
		}
		n, err := r.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > largest:
			return b.reader.tooLarge()
		case errors.Is(err, io.EOF):
			b.rest = data
			return nil
		case err != nil:
			return b.reader.unread(err)
		}
	}
}

func (b *body) take(n int64) error {
	if !b.exempt {
		if err := b.reader.memory.Take(b.holder, n); err != nil {
			const retryAfter = 1
			return apierrors.NewTooManyRequests(err.Error()+", try again later", retryAfter)
		}
	}
	b.taken += n
	b.reader.waitingBytes.Add(float64(n))
	return nil
}

// release releases the memory. The caller holds the lock.
func (b *body) release() {
	if b.taken == 0 {
		return
	}
	if !b.exempt {
		b.reader.memory.Give(b.holder, b.taken)
	}
	b.reader.waitingBytes.Add(-float64(b.taken))
	b.taken, b.rest = 0, nil
}

func (b *Reader) tooLarge() error {
	return b.refusal("large", apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", b.largest)))
}

func (b *Reader) refusal(reason string, err *apierrors.StatusError) error {
	b.rejected.WithLabelValues(reason).Inc()
	return err
}

// Unread returns the unread bytes of a body in memory. The caller must neither change nor retain them.
func Unread(r *http.Request) (data []byte, ok bool) {
	b, ok := r.Body.(*body)
	if !ok {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rest, true
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	if len(b.rest) == 0 {
		b.release()
		return n, io.EOF
	}
	return n, nil
}

func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release()
	return nil
}

// ErrSlow is returned by reads of a body that is too slow.
var ErrSlow = fmt.Errorf("the request body did not arrive in time: it must arrive within %s and at %d bytes per second or faster", bodyTimeout, minBodyRate)

const (
	rateWindow = 10 * time.Second
	// discardTimeout is how long the server reads the rest of an unused body before it closes the connection.
	discardTimeout = 5 * time.Second
)

// guard is a request body with a read deadline.
type guard struct {
	io.Reader

	timeout time.Duration // for the entire body
	// closeBody closes the body once. giveUp calls it if it does not wait for a Read.
	closeBody func() error
	giveUp    func()

	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer
	// read is the number of bytes read, and checked its value when the rate was last checked.
	read, checked int64
	slow, ended   bool
}

// Upstream limits the size of bodies.
//
//reference:limit request =3 MiB | body: size, as in kube-apiserver; etcd stores 1.5 MiB | 413
const (
	// bodyTimeout leaves a quarter of the request timeout for the request itself.
	//
	//reference:limit request | body: time to read it | 408
	bodyTimeout = 45 * time.Second
	//reference:limit request | body: minimum per second, over 10 s | 408
	minBodyRate = 1 << 10
)

// WithGuard returns the filter that limits reads of bodies. It must come before filters that wrap the ResponseWriter.
func WithGuard(next http.Handler) http.Handler { return withGuard(next, bodyTimeout) }

func withGuard(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !In(r) {
			next.ServeHTTP(w, r)
			return
		}
		g := &guard{Reader: r.Body, timeout: timeout, closeBody: sync.OnceValue(r.Body.Close)}
		g.giveUp = func() { _ = g.closeBody() } // e.g. a pipe
		if r.ProtoMajor == 1 {
			g.giveUp = func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) }
		}
		// A copy, because the server uses the original request.
		guarded := r.WithContext(context.WithValue(r.Context(), guardKey{}, g))
		guarded.Body = g
		defer g.leave(w, r)
		next.ServeHTTP(w, guarded)
	})
}

type guardKey struct{}

// Slow reports whether the request body was too slow.
func Slow(ctx context.Context) bool {
	g, ok := ctx.Value(guardKey{}).(*guard)
	if !ok {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slow
}

// In reports whether a request has a body.
func In(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 }

func (g *guard) Read(p []byte) (int, error) {
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

// Close implements io.Closer. The deadline still applies while it waits for a Read.
func (g *guard) Close() error {
	err := g.closeBody()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end()
	return err
}

func (g *guard) start() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.slow:
		return ErrSlow
	case g.ended || g.timer != nil:
		return nil
	}
	g.deadline = time.Now().Add(g.timeout)
	g.timer = time.AfterFunc(g.wait(), g.check)
	return nil
}

func (g *guard) wait() time.Duration { return min(rateWindow, max(time.Until(g.deadline), 1)) }

func (g *guard) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	if !time.Now().Before(g.deadline) || g.read-g.checked < minBodyRate*int64(rateWindow/time.Second) {
		g.slow = true
		g.giveUp()
		return
	}
	g.checked = g.read
	g.timer.Reset(g.wait())
}

// end stops the timer. The caller holds the lock.
func (g *guard) end() {
	g.ended = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

// leave is called after the handler. The server then reads the rest of the body of an HTTP/1.1 connection.
func (g *guard) leave(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	whole := g.ended && !g.slow
	g.end()
	if !whole && r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(discardTimeout))
	}
}
