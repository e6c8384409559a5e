package frontproxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
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

// forwarder sends requests to shards and their answers to clients.
type forwarder struct {
	resolver *resolver
	visitors *visitors
	// groups decides which groups users keep.
	groups authn.GroupFilter
	// unread returns the shards that have not been read since the start, or whose connection has
	// broken, and since when the last one is not: without any, nothing exists that is not known.
	unread func() (shards []string, since time.Time)
	// draining is done once long-running requests have to end.
	draining context.Context //nolint:containedctx // the life of the server, which outlasts every request
	metrics  *metrics
}

// route is where one request goes, and how.
type route struct {
	backend *backend
	// mapped is set where backend is of the mapping file, and not a shard.
	mapped *mappedServer
	// mount is set where backend is outside of the installation, by a mount, and hops counts
	// those that have led to workspaces.
	mount *mountedServer
	hops  int
	// holder is the shard of the logical cluster, which says who may enter; nil where
	// there is none.
	holder *backend
	// cluster is the resolved name, rest the escaped path below it. Where it is seen
	// through a view, that is before it in the path.
	cluster string
	view    string
	rest    string
	// whole says that the path goes to the server as the client wrote it.
	whole bool
	user  user.Info
	// token is passed on instead of the user, if it is set.
	token   string
	long    bool
	upgrade bool
	// arrived is when the request came, from which on it waits for the index.
	arrived time.Time
	// isNew is set while the logical cluster is not for users yet, or servers may not
	// know yet that it is.
	isNew bool
	// visitor is the user in the logical cluster.
	visitor visitor
	// release gives the place back that the request has among those who may have to
	// wait.
	release func()
	// attempt knows whether the request may have reached the shard.
	attempt *attempt
}

// enter notes that the user has entered the logical cluster.
func (to *route) enter(f *forwarder) {
	f.visitors.entered(to.visitor)
	to.release()
}

// forward sends r to the shard of to and answers with what the shard answers.
func (f *forwarder) forward(w http.ResponseWriter, r *http.Request, to *route) {
	if !to.backend.Ask() {
		f.unreachable(w, to)
		return
	}
	defer func() {
		to.backend.Left()
		to.backend.Used(to.backend.retire)
	}()
	ctx, attempt := to.backend.attempt(r.Context())
	to.attempt = attempt
	if to.long {
		// Watches would keep the server from stopping.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(f.draining, cancel)() //nolint:contextcheck // the end of the server ends the request, nothing more
	}
	proxy := httputil.ReverseProxy{
		Rewrite:   to.rewrite(f),
		Transport: to.backend.transport(to.upgrade),
		// Answers of unknown length, all watches among them, are flushed after
		// every write, whatever is set here; the others need not be.
		FlushInterval:  0,
		BufferPool:     shortBuffers,
		ModifyResponse: func(res *http.Response) error { return f.modify(r, res, to) },
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { f.fail(w, r, to, err) },
		ErrorLog:       quietLog,
	}
	if to.long {
		proxy.BufferPool = longBuffers
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// rewrite returns the function that makes the request to the shard.
func (to *route) rewrite(f *forwarder) func(*httputil.ProxyRequest) {
	return func(p *httputil.ProxyRequest) {
		// The shard gets the name, so that it has nothing to resolve; the rest
		// of the path stays as the client wrote it, and so does the query.
		escaped := to.backend.prefix + to.view + request.ClusterPath(to.cluster) + to.rest
		switch {
		case to.whole:
			escaped = to.backend.prefix + p.In.URL.EscapedPath()
		case to.mount != nil:
			escaped = to.backend.prefix + to.rest
		}
		p.Out.URL.Scheme, p.Out.URL.Host = to.backend.base.Scheme, to.backend.base.Host
		p.Out.URL.RawPath = escaped
		p.Out.URL.Path, _ = url.PathUnescape(escaped) // its parts have been unescaped before
		p.Out.URL.RawQuery = p.In.URL.RawQuery
		p.Out.Host = ""
		authn.DropWebSocketTokens(p.Out.Header)
		if to.mount != nil {
			to.mount.prepare(p, to, f)
			return
		}
		p.SetXForwarded()

		ownIdentity.drop(p.Out.Header)
		if to.mapped != nil {
			to.mapped.identify(p.Out.Header, to.user, f.groups.Filter(to.user.GetGroups()))
			return
		}
		to.identify(p.Out, f)
	}
}

// readyIn returns how long a request still waits for a logical cluster to become ready.
func (f *forwarder) readyIn(to *route) time.Duration {
	return max(0, time.Until(to.arrived.Add(f.resolver.ready)))
}

// identify says in a request to the shard who it is from. The request says nothing
// about that yet.
func (to *route) identify(r *http.Request, f *forwarder) {
	if to.isNew {
		r.Header.Set(request.ReadyTimeoutHeader, f.readyIn(to).String())
	}
	if to.token != "" {
		r.Header.Set("Authorization", "Bearer "+to.token)
		return
	}
	r.Header.Del("Authorization")
	// Apart, since it compares each header that there is with those that it sets.
	said := http.Request{Header: http.Header{}}
	transport.SetAuthProxyHeaders(&said, to.user.GetName(), to.user.GetUID(), f.groups.Filter(to.user.GetGroups()), to.user.GetExtra())
	maps.Copy(r.Header, said.Header)
}

// modify looks at a shard's answer before the client gets it.
func (f *forwarder) modify(r *http.Request, res *http.Response, to *route) error {
	if to.mount != nil {
		if err := to.mount.accept(res); err != nil {
			return err
		}
	} else if rec := recordFrom(r.Context()); rec != nil {
		rec.answeredByShard = true
	}
	switch {
	case f.conceals(r, res, to):
		f.visitors.denied(to.visitor)
		f.resolver.hold(r.Context(), to.arrived)
		return &answerError{status: f.unknown(r, to)}
	case to.long && res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusSwitchingProtocols:
		res.Body = &watchBody{ReadCloser: res.Body, mend: func(err error) error { return f.mend(r, to, err) }}
	}
	return nil
}

// answerError makes the error handler give an answer of the front-proxy's own.
type answerError struct {
	status *apierrors.StatusError
}

func (e *answerError) Error() string { return e.status.Error() }

// fail answers when the shard did not.
func (f *forwarder) fail(w http.ResponseWriter, r *http.Request, to *route, err error) {
	var answer *answerError
	if to.mount == nil {
		to.attempt.failed(r.Context(), err)
	}
	switch {
	case errors.As(err, &answer):
		writeStatus(w, answer.status)
	case f.draining.Err() != nil:
		writeStatus(w, unavailable("the front-proxy is shutting down"))
	case bodies.Slow(r.Context()):
		writeStatus(w, statusError(http.StatusRequestTimeout, metav1.StatusReasonTimeout, 0, "%s", bodies.ErrSlow.Error()))
	case r.Context().Err() != nil:
		// The client has gone; there is nobody to answer.
		w.WriteHeader(statusClientGone)
	case to.mount == nil && !undialled(err) && f.denied(r.Context(), to):
		f.visitors.denied(to.visitor)
		f.refuse(w, r, to)
	case !to.attempt.connected.Load():
		klog.FromContext(r.Context()).V(1).Info("A shard, or a server of the mapping file, is unreachable", "server", to.backend.Name, "err", err)
		f.unreachable(w, to)
	default:
		f.metrics.upstreamErrors.WithLabelValues(to.backend.Name, "broken").Inc()
		klog.FromContext(r.Context()).V(1).Info("A connection to a shard, or to a server of the mapping file, broke", "server", to.backend.Name, "err", err)
		// Clients repeat a request, whatever its verb, when they are told when
		// to: only what can be done twice may say so.
		retryAfter := 0
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			retryAfter = retrySoon
		}
		writeStatus(w, statusError(http.StatusBadGateway, metav1.StatusReasonInternalError, retryAfter,
			"the connection to %s broke before it answered", to.server()))
	}
}

// hangs reports whether a connection to a shard took too long, so that nobody else
// should wait for one. A shard that refuses connections costs nobody a wait, and
// is served again as soon as it is back; other errors clients can cause.
func hangs(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// unreachable answers where there is no connection to the shard.
func (f *forwarder) unreachable(w http.ResponseWriter, to *route) {
	f.metrics.upstreamErrors.WithLabelValues(to.backend.Name, "unreachable").Inc()
	writeStatus(w, unavailable("%s is not reachable, try again", to.server()))
}

// server says in answers where a request was to go.
func (to *route) server() string {
	switch {
	case to.mapped != nil:
		return "the server of this path"
	case to.mount != nil:
		return "the mounted server"
	case to.whole:
		return "the shard"
	}
	return "the workspace's shard"
}

// refuse answers a user who may not enter as if there were nothing, and after the same time.
func (f *forwarder) refuse(w http.ResponseWriter, r *http.Request, to *route) {
	f.resolver.hold(r.Context(), to.arrived)
	writeStatus(w, f.unknown(r, to))
}

// shardRetryTimeout is for how long clients are asked to retry while a shard has not been read. Clients
// that retry, such as kubectl, repeat each of their requests ten times before they show the error.
const shardRetryTimeout = 10 * time.Second

// unknown is the answer for what there is not, as far as is known, and to who may not enter: that
// it is not known as long as it may be on a shard that has not been read, or that is not connected.
func (f *forwarder) unknown(r *http.Request, to *route) *apierrors.StatusError {
	shards, since := f.unread()
	if len(shards) == 0 {
		return forbidden(r, unescapedRest(to.rest))
	}
	message := "the front-proxy does not know all workspaces, because a shard does not answer"
	if f.administers(r.Context(), to.user) {
		message += ": " + strings.Join(shards, ", ") + ". Start it, or delete its Shard object in root if it does not exist any more"
	}
	retryAfter := retrySoon
	if time.Since(since) > shardRetryTimeout {
		retryAfter = 0
	}
	return statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, retryAfter, "%s", message)
}

// administers reports whether a user administers the installation. Groups that shards are not told
// of count for nothing.
func (f *forwarder) administers(ctx context.Context, who user.Info) bool {
	told := &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: f.groups.Filter(who.GetGroups()), Extra: who.GetExtra()}
	return identity.MemberOf(ctx, told, request.GroupAdmin)
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
func (f *forwarder) mend(r *http.Request, to *route, err error) error {
	switch {
	case f.draining.Err() != nil:
		return io.EOF
	case errors.Is(err, io.EOF) || r.Context().Err() != nil:
		return err
	}
	f.metrics.upstreamErrors.WithLabelValues(to.backend.Name, "broken").Inc()
	return io.EOF
}

func unescapedRest(rest string) string {
	path, err := url.PathUnescape(rest)
	if err != nil || path == "" {
		return "/"
	}
	return path
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
