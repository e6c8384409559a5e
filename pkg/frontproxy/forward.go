package frontproxy

import (
	"context"
	"errors"
	"io"
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

// Bodies are copied through buffers of these sizes. A watch keeps its buffer for as long as it lasts.
var (
	shortBuffers = newBufferPool(32 << 10)
	longBuffers  = newBufferPool(8 << 10)
)

// target is the server to which a call is forwarded. It is the shard of a logical cluster, a server
// of the mapping file, a mounted server, or, for resources of the installation, any shard.
type target interface {
	way() *backend
	// path converts the escaped path of the client's request into the one of the forwarded request.
	path(escaped string) string
	identify(p *httputil.ProxyRequest)
	// accept inspects the response. If it returns an error, the client receives that instead.
	accept(r *http.Request, res *http.Response) *apierrors.StatusError
	// lost returns the response if the request failed with err, or nil for the default.
	lost(r *http.Request, err error) *apierrors.StatusError
	// String is used in messages to clients.
	String() string
}

type forwarder struct {
	// draining is done when long-running requests must end.
	draining context.Context //nolint:containedctx // the lifetime of the server, which is longer than any request
	metrics  *metrics
}

type forwarding struct {
	*forwarder
	*call

	to  target
	way *backend
	// attempt records whether the request may have reached the server.
	attempt *attempt
}

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
	ctx, fw.attempt = newAttempt(r.Context(), way.Peer, way.external)
	if c.long {
		// Otherwise, watches would delay the shutdown.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(f.draining, cancel)() //nolint:contextcheck // the end of the server ends the request, nothing more
	}
	proxy := httputil.ReverseProxy{
		Rewrite:        fw.rewrite,
		Transport:      way.transport(c.upgrade),
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

func (fw *forwarding) modify(r *http.Request, res *http.Response) error {
	recordFrom(r.Context()).forwarded = !fw.way.external
	if status := fw.to.accept(r, res); status != nil {
		return status
	}
	if fw.long && res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &watchBody{ReadCloser: res.Body, watchError: func(err error) error { return fw.watchError(r, err) }}
	}
	return nil
}

func (fw *forwarding) fail(w http.ResponseWriter, r *http.Request, err error) {
	fw.attempt.failed(r.Context(), err)
	var refused *apierrors.StatusError
	switch {
	case errors.As(err, &refused): // by modify
		writeStatus(w, refused)
		return
	case fw.draining.Err() != nil:
		writeStatus(w, unavailable("the front-proxy is shutting down"))
		return
	case bodies.Slow(r.Context()):
		writeStatus(w, statusError(http.StatusRequestTimeout, metav1.StatusReasonTimeout, 0, "%s", bodies.ErrSlow.Error()))
		return
	case r.Context().Err() != nil:
		w.WriteHeader(statusClientClosed)
		return
	}
	if status := fw.to.lost(r, err); status != nil {
		writeStatus(w, status)
		return
	}
	logger := klog.FromContext(r.Context()).V(1)
	if !fw.attempt.connected.Load() {
		logger.Info("Server is unreachable", "server", fw.way.Name, "err", err)
		fw.unreachable(w)
		return
	}
	fw.metrics.upstreamErrors.WithLabelValues(fw.way.Name, "broken").Inc()
	logger.Info("Connection to server failed", "server", fw.way.Name, "err", err)
	// Clients retry any request that has Retry-After, whatever its verb. It is only safe for idempotent requests.
	retryAfter := 0
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		retryAfter = retrySoon
	}
	writeStatus(w, statusError(http.StatusBadGateway, metav1.StatusReasonInternalError, retryAfter, "the connection to %s failed before it responded", fw.to))
}

func (fw *forwarding) unreachable(w http.ResponseWriter) {
	fw.metrics.upstreamErrors.WithLabelValues(fw.way.Name, "unreachable").Inc()
	writeStatus(w, unavailable("%s is not reachable, try again", fw.to))
}

type watchBody struct {
	io.ReadCloser
	watchError func(error) error
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		err = b.watchError(err)
	}
	return n, err
}

// watchError ends a watch regularly if the shard fails or the front-proxy shuts down. Clients then resume
// it, while kubectl reports a broken stream to its user as an error.
func (fw *forwarding) watchError(r *http.Request, err error) error {
	switch {
	case fw.draining.Err() != nil:
		return io.EOF
	case errors.Is(err, io.EOF) || r.Context().Err() != nil:
		return err
	}
	fw.metrics.upstreamErrors.WithLabelValues(fw.way.Name, "broken").Inc()
	return io.EOF
}

type bufferPool struct{ sync.Pool }

func newBufferPool(size int) *bufferPool {
	return &bufferPool{sync.Pool{New: func() any { return new(make([]byte, size)) }}}
}

func (p *bufferPool) Get() []byte { return *p.Pool.Get().(*[]byte) }

func (p *bufferPool) Put(buffer []byte) { p.Pool.Put(&buffer) }
