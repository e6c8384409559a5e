package bodies

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/budget"
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

// Limits bound the memory of bodies.
type Limits struct {
	// Waiting is how many bytes of bodies are in memory for requests that wait for
	// the rest of them or for their turn; WaitingPerUser is how many of one user.
	Waiting, WaitingPerUser int64
}

// NewLimits returns the defaults.
func NewLimits() Limits { return Limits{Waiting: 512 << 20, WaitingPerUser: 128 << 20} }

// AddFlags adds the flags of l to fs.
func (l *Limits) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&l.Waiting, "max-request-body-bytes", l.Waiting, "bytes of bodies of requests that are in memory at a time while they come and wait for their turn; more are answered with 429")
	fs.Int64Var(&l.WaitingPerUser, "max-request-body-bytes-per-user", l.WaitingPerUser, "bytes of bodies of requests of one user that are in memory at a time while they come and wait for their turn, which is never all of what is free; more are answered with 429. The service accounts of a logical cluster count as one user")
}

// Validate returns what is wrong with l.
func (l *Limits) Validate() []error {
	const least = 16 << 20
	if l.Waiting < least || l.WaitingPerUser < least {
		return []error{fmt.Errorf("--max-request-body-bytes %d and --max-request-body-bytes-per-user %d must be at least %d, a few bodies of the largest size", l.Waiting, l.WaitingPerUser, least)}
	}
	return nil
}

type metrics struct {
	rejected     *prometheus.CounterVec
	waitingBytes prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		rejected: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shardplane", Subsystem: "bodies", Name: "rejected_requests_total",
			Help: "[ALPHA] Requests refused for their bodies, by reason: slow, large, crowded or broken.",
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
	budget  *budget.Budget[identity.Payer]
}

// NewReader returns a reader of bodies of up to largest bytes. registerer may be nil.
func NewReader(l Limits, largest int64, registerer prometheus.Registerer) *Reader {
	limits := budget.Limits{Total: l.Waiting, Each: l.WaitingPerUser, Own: min(l.WaitingPerUser, ownBodies*(2*largest+overhead))}
	return &Reader{largest: largest, metrics: newMetrics(registerer), budget: budget.New[identity.Payer](limits)}
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
		read := &body{reader: b, payer: identity.PayerFrom(r.Context()), exempt: identity.IsExempt(r.Context())}
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
	payer  identity.Payer
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

// take takes room from the budget.
func (b *body) take(n int64) error {
	if !b.exempt && !b.reader.budget.Take(b.payer, n) {
		const retryAfter = 1
		return b.reader.refusal("crowded", apierrors.NewTooManyRequests("too many bytes of bodies of requests wait, see --max-request-body-bytes and --max-request-body-bytes-per-user; try again later", retryAfter))
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
		b.reader.budget.Give(b.payer, b.taken)
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
