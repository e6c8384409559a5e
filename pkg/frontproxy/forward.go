package frontproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
)

const (
	// shortBuffer and longBuffer are the sizes of the buffers through which
	// bodies are copied. A watch keeps its buffer for as long as it lasts.
	shortBuffer = 32 << 10
	longBuffer  = 8 << 10
)

var (
	shortBuffers = newBufferPool(shortBuffer)
	longBuffers  = newBufferPool(longBuffer)
)

// target is where a call is forwarded to: the shard of a logical cluster, a shard for what is of
// the whole installation, a server of the mapping file, or a server that a tenant has mounted.
type target interface {
	// way returns the address and the connections.
	way() *backend
	// path returns the escaped path of the request there, of that of the client.
	path(escaped string) string
	// identify makes the header of the request say who it is from.
	identify(p *httputil.ProxyRequest)
	// accept looks at an answer before the client gets it. The client gets what it returns
	// instead, if that is not nil.
	accept(r *http.Request, res *http.Response) *apierrors.StatusError
	// lost returns what the client is answered if there is no answer because of err, or nil
	// for what everybody is told.
	lost(r *http.Request, err error) *apierrors.StatusError
	// String says in answers where the call was to go.
	String() string
}

// forwarder sends calls to targets and their answers to clients.
type forwarder struct {
	// draining is done once long-running requests have to end.
	draining context.Context //nolint:containedctx // the life of the server, which outlasts every request
	metrics  *metrics
}

// forwarding is a call on its way to a target.
type forwarding struct {
	*forwarder
	*call

	to  target
	way *backend
	// attempt knows whether the request may have reached the server.
	attempt *attempt
}

// forward sends r to a target and answers with what that answers.
func (f *forwarder) forward(w http.ResponseWriter, r *http.Request, c *call, to target) {
	way := to.way()
	fw := &forwarding{forwarder: f, call: c, to: to, way: way}
	if !way.Allow() {
		fw.unreachable(w)
		return
	}
	defer func() {
		way.Done()
		way.Used(way.retire)
	}()
	var ctx context.Context
	ctx, fw.attempt = way.attempt(r.Context())
	if c.long {
		// Watches would keep the server from stopping.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(f.draining, cancel)() //nolint:contextcheck // the end of the server ends the request, nothing more
	}
	proxy := httputil.ReverseProxy{
		Rewrite:   fw.rewrite,
		Transport: way.transport(c.upgrade),
		// Answers of unknown length, all watches among them, are flushed after
		// every write, whatever is set here; the others need not be.
		FlushInterval:  0,
		BufferPool:     shortBuffers,
		ModifyResponse: func(res *http.Response) error { return fw.modify(r, res) },
		ErrorHandler:   fw.fail,
		ErrorLog:       quietLog,
	}
	if c.long {
		proxy.BufferPool = longBuffers
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// rewrite makes the request to the server.
func (fw *forwarding) rewrite(p *httputil.ProxyRequest) {
	escaped := fw.way.prefix + fw.to.path(p.In.URL.EscapedPath())
	p.Out.URL.Scheme, p.Out.URL.Host = fw.way.base.Scheme, fw.way.base.Host
	p.Out.URL.RawPath = escaped
	p.Out.URL.Path, _ = url.PathUnescape(escaped) // its parts have been unescaped before
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	p.Out.Host = ""
	authn.DropWebSocketTokens(p.Out.Header)
	ownIdentity.drop(p.Out.Header)
	fw.to.identify(p)
}

// modify looks at a server's answer before the client gets it.
func (fw *forwarding) modify(r *http.Request, res *http.Response) error {
	if rec := recordFrom(r.Context()); rec != nil && !fw.way.outside {
		rec.answeredByShard = true
	}
	if status := fw.to.accept(r, res); status != nil {
		return &answerError{status: status}
	}
	if fw.long && res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &watchBody{ReadCloser: res.Body, mend: func(err error) error { return fw.mend(r, err) }}
	}
	return nil
}

// answerError makes the error handler give an answer of the front-proxy's own.
type answerError struct {
	status *apierrors.StatusError
}

func (e *answerError) Error() string { return e.status.Error() }

// fail answers when the server did not.
func (fw *forwarding) fail(w http.ResponseWriter, r *http.Request, err error) {
	fw.attempt.failed(r.Context(), err)
	var answer *answerError
	switch {
	case errors.As(err, &answer):
		writeStatus(w, answer.status)
		return
	case fw.draining.Err() != nil:
		writeStatus(w, unavailable("the front-proxy is shutting down"))
		return
	case bodies.Slow(r.Context()):
		writeStatus(w, statusError(http.StatusRequestTimeout, metav1.StatusReasonTimeout, 0, "%s", bodies.ErrSlow.Error()))
		return
	case r.Context().Err() != nil:
		// The client has gone; there is nobody to answer.
		w.WriteHeader(statusClientGone)
		return
	}
	if status := fw.to.lost(r, err); status != nil {
		writeStatus(w, status)
		return
	}
	logger := klog.FromContext(r.Context()).V(1)
	if !fw.attempt.connected.Load() {
		logger.Info("A shard, or a server of the mapping file, is unreachable", "server", fw.way.Name, "err", err)
		fw.unreachable(w)
		return
	}
	fw.metrics.upstreamErrors.WithLabelValues(fw.way.Name, "broken").Inc()
	logger.Info("A connection to a shard, or to a server of the mapping file, broke", "server", fw.way.Name, "err", err)
	// Clients repeat a request, whatever its verb, when they are told when
	// to: only what can be done twice may say so.
	retryAfter := 0
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		retryAfter = retrySoon
	}
	writeStatus(w, statusError(http.StatusBadGateway, metav1.StatusReasonInternalError, retryAfter, "the connection to %s broke before it answered", fw.to))
}

// unreachable answers where there is no connection to the server.
func (fw *forwarding) unreachable(w http.ResponseWriter) {
	fw.metrics.upstreamErrors.WithLabelValues(fw.way.Name, "unreachable").Inc()
	writeStatus(w, unavailable("%s is not reachable, try again", fw.to))
}

// undialled reports whether there was no connection to the server.
func undialled(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) && operation.Op == "dial"
}

// watchBody is the body of a watch, whose errors go through mend.
type watchBody struct {
	io.ReadCloser
	mend func(error) error
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		err = b.mend(err)
	}
	return n, err
}

// mend makes a watch end in good order when the shard dies or the front-proxy
// shuts down: for clients that is the usual end of a watch, after which they
// resume, while a broken stream is an error that kubectl, for one, shows to its
// user.
func (fw *forwarding) mend(r *http.Request, err error) error {
	switch {
	case fw.draining.Err() != nil:
		return io.EOF
	case errors.Is(err, io.EOF) || r.Context().Err() != nil:
		return err
	}
	fw.metrics.upstreamErrors.WithLabelValues(fw.way.Name, "broken").Inc()
	return io.EOF
}

// bufferPool keeps buffers of one size.
type bufferPool struct{ pool sync.Pool }

func newBufferPool(size int) *bufferPool {
	return &bufferPool{pool: sync.Pool{New: func() any {
		buffer := make([]byte, size)
		return &buffer
	}}}
}

func (p *bufferPool) Get() []byte { return *p.pool.Get().(*[]byte) }

func (p *bufferPool) Put(buffer []byte) { p.pool.Put(&buffer) }
