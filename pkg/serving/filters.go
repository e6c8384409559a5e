package serving

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Filter is one filter of a handler chain.
type Filter struct {
	// Name and Description are for the documentation.
	Name, Description string
	// Wrap returns the filter around next. It is nil if the filter is disabled.
	Wrap func(next http.Handler) http.Handler
}

// NewFilter returns an enabled filter.
func NewFilter(name, description string, wrap func(next http.Handler) http.Handler) Filter {
	return Filter{Name: name, Description: description, Wrap: wrap}
}

// Chain contains the filters between the listener and the API of a server, in the order of requests.
type Chain []Filter

// Handler returns the filters around handler.
func (c Chain) Handler(handler http.Handler) http.Handler {
	for _, filter := range slices.Backward(c) {
		if filter.Wrap != nil {
			handler = filter.Wrap(handler)
		}
	}
	return handler
}

// String returns the documentation of the chain, one line per filter.
func (c Chain) String() string {
	var b strings.Builder
	for _, filter := range c {
		fmt.Fprintf(&b, "%-22s%s\n", filter.Name, filter.Description)
	}
	return b.String()
}

// SetChain makes the server use the chain that build returns for the completed configuration.
func SetChain(c *genericapiserver.Config, build func(c *genericapiserver.Config) Chain) {
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(c).Handler(api)
	}
}

func when(on bool, wrap func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	if !on {
		return nil
	}
	return wrap
}

// WithAccessHeader returns the filter that reports in a response header, to the front-proxy, whether the user was
// authorized for the logical cluster. It also records the flow of the request, before impersonation.
func WithAccessHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set(request.AccessAuthorizedHeader, "false")
		// Only once, because the handler may authorize other requests later, in any goroutine.
		var once sync.Once
		ctx := request.OnAccessAuthorized(r.Context(), func() {
			once.Do(func() { header.Set(request.AccessAuthorizedHeader, "true") })
		})
		if userInfo, ok := apirequest.UserFrom(ctx); ok {
			cluster, _ := request.ClusterFrom(ctx)
			ctx = identity.WithFlow(ctx, identity.FlowOf(cluster.Name, userInfo))
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

var listBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 64<<10) }}

// WithListBuffer returns the filter that buffers the responses to lists. Upstream writes a list object by object, in
// pieces of up to 4 KiB over HTTP/2. For a list of 20 MB, this takes as long as its encoding.
func WithListBuffer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Verb != "list" {
			next.ServeHTTP(w, r)
			return
		}
		buffer, _ := listBuffers.Get().(*bufio.Writer)
		buffer.Reset(w)
		next.ServeHTTP(&bufferedWriter{ResponseWriter: w, buffer: buffer}, r)
		// Not deferred, because a response must not look complete after a panic. An error means a disconnected client.
		_ = buffer.Flush()
		buffer.Reset(nil)
		listBuffers.Put(buffer)
	})
}

type bufferedWriter struct {
	http.ResponseWriter
	buffer *bufio.Writer
}

func (w *bufferedWriter) Write(p []byte) (int, error) { return w.buffer.Write(p) }

func (w *bufferedWriter) Flush() {
	if err := w.buffer.Flush(); err != nil {
		return
	}
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

func (w *bufferedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// maxPath is the maximum path length in bytes, several times that of the longest names of group,
// resource, namespace and object. Selectors are in the query.
//
//reference:limit request | path of the URL | 414
const maxPath = 8 << 10

// LongPaths returns the filter that rejects long paths. It comes first, because others process the path repeatedly.
func LongPaths() Filter {
	return Filter{"long paths", "rejects paths above 8 KiB; 414", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if len(r.URL.Path) <= maxPath && len(r.URL.RawPath) <= maxPath {
				next.ServeHTTP(w, r)
				return
			}
			http.Error(w, fmt.Sprintf("the path of the request is longer than %d bytes", maxPath), http.StatusRequestURITooLong)
		})
	}}
}

// MaskTokens returns the filter that removes bearer tokens from URLs. No server accepts them there,
// but some clients send them, and URLs are logged, audited and forwarded.
func MaskTokens() Filter {
	return Filter{"token mask", "masks access_token in queries, because URLs are logged", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.RawQuery, accessToken) {
				r = withMaskedTokens(r)
			}
			next.ServeHTTP(w, r)
		})
	}}
}

const accessToken = "access_token="

var accessTokens = regexp.MustCompile(`(^|&)` + accessToken + `[^&]*`)

func withMaskedTokens(r *http.Request) *http.Request {
	masked, url := r.WithContext(r.Context()), *r.URL
	url.RawQuery = accessTokens.ReplaceAllString(r.URL.RawQuery, "${1}"+accessToken+"masked")
	masked.URL = &url
	if path, _, found := strings.Cut(r.RequestURI, "?"); found {
		masked.RequestURI = path + "?" + url.RawQuery
	}
	return masked
}

// LongRunningStop returns the filter that ends long-running requests when stop is done, so that a graceful shutdown
// does not wait for watches.
//
//nolint:contextcheck // the request has its own context; stop only ends it
func LongRunningStop(stop context.Context, c *genericapiserver.Config) Filter {
	return Filter{"end of watches", "ends long-running requests when the server stops", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info, ok := apirequest.RequestInfoFrom(r.Context())
			if !ok || !c.LongRunningFunc(r, info) {
				next.ServeHTTP(w, r)
				return
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(stop, cancel)()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}}
}

// responseMargin is the maximum time between the end of a request's context and its deadline.
const responseMargin = time.Second

// withResponseMargin ends the context of a request shortly before its deadline, so that the handler can return an
// error. If a response has begun at the deadline, upstream's timeout filter resets the stream.
func withResponseMargin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadline, ok := r.Context().Deadline()
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		margin := min(time.Until(deadline)/10, responseMargin)
		ctx, cancel := context.WithDeadline(r.Context(), deadline.Add(-margin))
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// stackSize is the stack size that a GET needs behind this filter. Writes need slightly more.
const stackSize = 24 << 10

// withStack grows the stack of the goroutine while it is almost empty. Otherwise, it would be doubled and copied
// several times. Long-running requests keep a small stack.
func withStack(next http.Handler, lasts apirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && !lasts(r, info) {
			growStack(0)
		}
		next.ServeHTTP(w, r)
	})
}

// growStack is called with 0. The stack grows when it is entered; the variable is not even cleared.
//
//go:noinline
func growStack(at int) byte {
	if at == 0 {
		return 0
	}
	var buffer [stackSize]byte
	buffer[at] = 1
	return buffer[at/2]
}

const readyzPath = "/readyz"

// WithReadinessWarnings adds warnings to the verbose response of /readyz. They do not affect readiness, and must not
// contain addresses or errors, because any client can read them.
func WithReadinessWarnings(next http.Handler, warnings func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != readyzPath {
			next.ServeHTTP(w, r)
			return
		}
		var added []byte
		for _, warning := range warnings() {
			added = fmt.Appendf(added, "[!]%s\n", warning)
		}
		if _, verbose := r.URL.Query()["verbose"]; !verbose || added == nil {
			next.ServeHTTP(w, r)
			return
		}
		// The last line is the result.
		response := &bufferedResponse{header: w.Header()}
		next.ServeHTTP(response, r)
		body := response.body.Bytes()
		end := bytes.LastIndexByte(bytes.TrimRight(body, "\n"), '\n') + 1
		w.Header().Del("Content-Length")
		w.WriteHeader(cmp.Or(response.code, http.StatusOK))
		for _, part := range [][]byte{body[:end], added, body[end:]} {
			_, _ = w.Write(part)
		}
	})
}

type bufferedResponse struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (b *bufferedResponse) Header() http.Header { return b.header }

func (b *bufferedResponse) WriteHeader(code int) { b.code = cmp.Or(b.code, code) }

func (b *bufferedResponse) Write(p []byte) (int, error) {
	b.WriteHeader(http.StatusOK)
	return b.body.Write(p)
}

const metricsPath = "/metrics"

// NewMetrics returns a handler for the metrics of a server and those that upstream registers once per process.
func NewMetrics(server prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, server}, promhttp.HandlerOpts{ProcessStartTime: legacyregistry.GetProcessStart()})
}

// installMetrics adds the metrics of server to those of upstream, which DELETE resets.
func installMetrics(s *genericapiserver.GenericAPIServer, server prometheus.Gatherer) {
	all, upstream := NewMetrics(server), legacyregistry.HandlerWithReset()
	s.Handler.NonGoRestfulMux.Unregister(metricsPath)
	s.Handler.NonGoRestfulMux.HandleFunc(metricsPath, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			upstream.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
	})
}
