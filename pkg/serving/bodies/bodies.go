package bodies

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

const (
	// overhead is what a body that waits counts beside its bytes: its goroutine and
	// its part of a connection.
	overhead = 16 << 10
	// firstBuffer is how much room a body gets before any of it has come.
	firstBuffer = 64 << 10
	// spare lets the end of a body be read without more room.
	spare = 512
	// ownBodies is how many bodies of the largest size each user has room for whatever
	// others have.
	ownBodies = 2
)

type metrics struct {
	rejected     *prometheus.CounterVec
	waitingBytes prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		rejected: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shardplane", Subsystem: "bodies", Name: "rejected_requests_total",
			Help: "[ALPHA] Requests refused for their bodies, by reason: slow, large or broken.",
		}, []string{"reason"})),
		waitingBytes: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "bodies", Name: "waiting_bytes",
			Help: "[ALPHA] Bytes of bodies in memory, of requests that wait for the rest of them or for their turn.",
		})),
	}
}

// Reader reads bodies before their requests execute.
type Reader struct {
	// largest is how many bytes a body may have.
	largest int64
	metrics metrics
	memory  *ledger.Ledger
}

// NewReader returns a reader of bodies of up to largest bytes. registerer may be nil.
func NewReader(l ledger.Limits, largest int64, registerer prometheus.Registerer) *Reader {
	own := ownBodies * (2*largest + overhead)
	if user := l[ledger.BodyBytesPerUser]; user > 0 {
		own = min(own, user)
	}
	return &Reader{largest: largest, metrics: newMetrics(registerer), memory: l.Ledger(ledger.BodyBytesResource, own, registerer)}
}

// Wrap returns next for requests whose bodies are in memory. Those of long-running
// requests, and of verbs that have none, are dropped, since nobody else reads them:
// over HTTP/2 they would fill the stream's buffer for as long as the request lasts.
func (b *Reader) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck, refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !In(r) {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method == http.MethodGet || r.Method == http.MethodHead || longRunning(r, info) {
			if err := b.drop(r); err != nil {
				refuse(w, r, err)
				return
			}
			r = r.WithContext(r.Context())
			r.Body = http.NoBody
			next.ServeHTTP(w, r)
			return
		}
		read := &body{reader: b, holder: ledger.HolderOf(r.Context()), exempt: identity.IsExempt(r.Context())}
		defer read.give()
		if err := read.fill(r); err != nil {
			refuse(w, r, err)
			return
		}
		r = r.WithContext(r.Context())
		r.Body = read
		next.ServeHTTP(w, r)
	})
}

// body is a body in memory. Its memory counts until it has been read.
type body struct {
	reader *Reader
	holder ledger.Holder
	exempt bool

	mu    sync.Mutex
	taken int64
	rest  []byte
}

// drop reads the body of r and keeps nothing, or returns why it is refused.
func (b *Reader) drop(r *http.Request) error {
	body := io.Reader(r.Body)
	if b.largest > 0 {
		body = io.LimitReader(body, b.largest+1)
	}
	n, err := io.Copy(io.Discard, body)
	switch {
	case err != nil:
		return b.unread(err)
	case b.largest > 0 && n > b.largest:
		return b.tooLarge()
	default:
		return nil
	}
}

// unread returns why a request is refused whose body cannot be read.
func (b *Reader) unread(err error) error {
	if errors.Is(err, ErrSlow) {
		return b.refusal("slow", &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusRequestTimeout, Reason: metav1.StatusReasonTimeout, Message: ErrSlow.Error(),
		}})
	}
	return b.refusal("broken", apierrors.NewBadRequest("the body of the request broke off"))
}

// fill reads the body of r, or returns why it is refused.
func (b *body) fill(r *http.Request) error {
	largest := b.reader.largest
	if largest > 0 && r.ContentLength > largest {
		return b.reader.tooLarge()
	}
	room := int64(firstBuffer)
	if r.ContentLength > 0 {
		room = min(room, r.ContentLength+spare)
	}
	if err := b.take(overhead + room); err != nil {
		return err
	}
	data := make([]byte, 0, room)
	for {
		if len(data) == cap(data) {
			more := int64(cap(data))
			if err := b.take(more); err != nil {
				return err
			}
			data = append(make([]byte, 0, int64(cap(data))+more), data...)
		}
		n, err := r.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case largest > 0 && int64(len(data)) > largest:
			return b.reader.tooLarge()
		case errors.Is(err, io.EOF):
			b.rest = data
			return nil
		case err != nil:
			return b.reader.unread(err)
		}
	}
}

// take takes room for n more bytes.
func (b *body) take(n int64) error {
	if !b.exempt {
		if err := b.reader.memory.Take(b.holder, n); err != nil {
			const retryAfter = 1
			return apierrors.NewTooManyRequests(err.Error()+", try again later", retryAfter)
		}
	}
	b.taken += n
	b.reader.metrics.waitingBytes.Add(float64(n))
	return nil
}

// give gives back what was taken, once.
func (b *body) give() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveLocked()
}

func (b *body) giveLocked() {
	if b.taken == 0 {
		return
	}
	if !b.exempt {
		b.reader.memory.Give(b.holder, b.taken)
	}
	b.reader.metrics.waitingBytes.Add(-float64(b.taken))
	b.taken, b.rest = 0, nil
}

func (b *Reader) tooLarge() error {
	return b.refusal("large", apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", b.largest)))
}

func (b *Reader) refusal(reason string, err *apierrors.StatusError) error {
	b.metrics.rejected.WithLabelValues(reason).Inc()
	return err
}

// Unread returns what nobody has read yet of the body of a request that a Reader has read. The
// caller does not change it, and keeps nothing of it.
func Unread(r *http.Request) (data []byte, ok bool) {
	b, ok := r.Body.(*body)
	if !ok {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rest, true
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	if len(b.rest) == 0 {
		b.giveLocked()
		return n, io.EOF
	}
	return n, nil
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.give()
	return nil
}
