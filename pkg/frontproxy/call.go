package frontproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/responses"
)

type call struct {
	user user.Info
	// token is a token of the development cluster. If it is set, it is forwarded to shards instead
	// of the user.
	token         string
	rest          string
	long, upgrade bool
	// arrived is when the request was received. Waits include the time since then.
	arrived time.Time
}

// newCall returns the call for a request. If the request is invalid, it writes the response and returns false.
func newCall(w http.ResponseWriter, r *http.Request, devTokens map[string]*user.DefaultInfo) (*call, bool) {
	userInfo, ok := genericapirequest.UserFrom(r.Context())
	if !ok {
		unauthorized.ServeHTTP(w, r)
		return nil, false
	}
	upgrade := r.Header.Get("Upgrade")
	if strings.ContainsFunc(upgrade, func(c rune) bool { return c < ' ' || c > '~' }) {
		writeStatus(w, apierrors.NewBadRequest("the Upgrade header contains invalid characters"))
		return nil, false
	}
	if refused := tooLarge(r, userInfo); refused != nil {
		writeStatus(w, refused)
		return nil, false
	}
	rec := recordFrom(r.Context())
	token := ""
	if known := devTokens[rec.token]; known != nil && known.Name == userInfo.GetName() && known.UID == userInfo.GetUID() {
		token = rec.token
	}
	return &call{
		user: userInfo, token: token, long: rec.long, upgrade: upgrade != "", arrived: rec.received,
	}, true
}

// identify sets the identity of the user in a request without identity headers.
func (c *call) identify(header http.Header, groups authn.GroupFilter) {
	if c.token != "" {
		header.Set("Authorization", "Bearer "+c.token)
		return
	}
	header.Del("Authorization")
	// SetAuthProxyHeaders compares all existing headers, so it gets an empty set.
	authHeaders := http.Request{Header: http.Header{}}
	transport.SetAuthProxyHeaders(&authHeaders, c.user.GetName(), c.user.GetUID(), groups.Filter(c.user.GetGroups()), c.user.GetExtra())
	maps.Copy(header, authHeaders.Header)
}

// ensureAuditID returns the audit ID of the request, chosen by the front-proxy so that both logs contain it.
func ensureAuditID(r *http.Request) string {
	id := r.Header.Get(auditinternal.HeaderAuditID)
	if id == "" {
		id = uuid.NewString()
		r.Header.Set(auditinternal.HeaderAuditID, id)
	}
	return id
}

// ownIdentity are the headers that components of an installation send to each other.
var ownIdentity = identityHeaders{prefixes: []string{authn.HeaderPrefix, request.InternalHeaderPrefix}}

// identityHeaders are headers, by name and by prefix, that only the front-proxy may set.
type identityHeaders struct{ names, prefixes []string }

func (i identityHeaders) drop(header http.Header) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		name = strings.ReplaceAll(name, "_", "-")
		return slices.ContainsFunc(i.names, func(own string) bool { return strings.EqualFold(name, own) }) ||
			slices.ContainsFunc(i.prefixes, func(own string) bool {
				return len(name) >= len(own) && strings.EqualFold(name[:len(own)], own)
			})
	})
}

const (
	// maxHeaderBytes limits the headers of a request to a shard, which has Go's default limit. The
	// rest is for headers that the front-proxy adds, except for the user.
	//
	//reference:limit request | headers at the front-proxy, with the groups of the user | 431
	maxHeaderBytes = http.DefaultMaxHeaderBytes - 16<<10
	// fieldBytes is the overhead of each header field in HTTP/2.
	fieldBytes = 32
)

// tooLarge returns an error, regardless of the target, if the headers with the user exceed the limit of a shard.
func tooLarge(r *http.Request, userInfo user.Info) *apierrors.StatusError {
	size := len(r.RequestURI) + len(r.Host)
	field := func(name string, values ...string) {
		for _, value := range values {
			size += len(name) + len(value) + fieldBytes
		}
	}
	for name, values := range r.Header {
		field(name, values...)
	}
	field(authn.HeaderUser, userInfo.GetName())
	field(authn.HeaderGroup, userInfo.GetGroups()...)
	for key, values := range userInfo.GetExtra() {
		field(authn.HeaderExtraPrefix+key, values...)
	}
	if size <= maxHeaderBytes {
		return nil
	}
	return statusError(http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonRequestEntityTooLarge, 0,
		"the headers of the request, with the groups and extra attributes of the user, have %d bytes, at most %d allowed: reduce the number of groups that the user's issuer returns",
		size, maxHeaderBytes)
}

// withCredentials removes identity headers from requests. It keeps tokens of the development
// cluster, because authentication removes them and the shards must authenticate them themselves.
func withCredentials(next http.Handler, own identityHeaders, devTokens map[string]*user.DefaultInfo) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own.drop(r.Header)
		if len(devTokens) > 0 {
			if token, _ := authn.BearerToken(r.Header); devTokens[token] != nil {
				recordFrom(r.Context()).token = token
			}
		}
		next.ServeHTTP(w, r)
	})
}

const (
	// retrySoon is the Retry-After in seconds of temporary errors.
	retrySoon = 1
	// statusClientClosed is the code of requests whose client disconnected before the response.
	statusClientClosed = 499
	accessLogLevel     = 3
	// warningCode is the code of miscellaneous warnings, see RFC 7234.
	warningCode = 299
)

// writeStatus writes an error as Kubernetes clients expect it, always in JSON.
func writeStatus(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if rec := recordOf(w); rec != nil {
		rec.status = status
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-cache, private")
	header.Set("X-Content-Type-Options", "nosniff")
	if hidden := messageForWarning(&status); hidden != "" {
		if warning, err := utilnet.NewWarningHeader(warningCode, "-", hidden); err == nil {
			header.Set("Warning", warning)
		}
	}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	body, marshalErr := json.Marshal(status)
	if marshalErr != nil {
		http.Error(w, status.Message, int(status.Code))
		return
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(body)
}

// messageForWarning returns the message of an error that kubectl does not show unless it is also a
// warning. For requests that are not for a resource, e.g. discovery, kubectl prints "unknown" or
// "the server rejected our request for an unknown reason". It has its own message for whoami.
func messageForWarning(status *metav1.Status) string {
	if status.Details != nil && status.Details.Kind != "" && status.Details.Kind != "selfsubjectreviews" {
		return ""
	}
	switch status.Reason {
	case metav1.StatusReasonForbidden:
		if strings.Contains(status.Message, authz.NotPermitted) {
			return authz.NotPermittedReason
		}
	case metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed:
		return status.Message
	case metav1.StatusReasonServiceUnavailable:
		if status.Details == nil || status.Details.RetryAfterSeconds == 0 {
			return status.Message
		}
	default:
	}
	return ""
}

// forbidden is the response to r if the logical cluster does not exist or the user has no access to it. Both cases
// have the same response, and shards respond in the same way. rest is the path below the logical cluster.
func forbidden(r *http.Request, rest string) *apierrors.StatusError {
	if info, err := requestInfo(r, rest); err == nil {
		if attributes, err := filters.GetAuthorizerAttributes(genericapirequest.WithRequestInfo(r.Context(), info)); err == nil {
			return responsewriters.ForbiddenStatusError(attributes, authz.NotPermittedReason)
		}
	}
	return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(authz.NotPermittedReason))
}

// unavailable is the response for conditions that will end without intervention.
func unavailable(format string, args ...any) *apierrors.StatusError {
	return statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, retrySoon, format, args...)
}

func statusError(code int32, reason metav1.StatusReason, retryAfter int, format string, args ...any) *apierrors.StatusError {
	err := request.StatusError(code, reason, fmt.Sprintf(format, args...))
	if retryAfter > 0 {
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter)}
	}
	return err
}

var unauthorized = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 {
		// Connections of unauthenticated clients are closed, because HTTP/2 connections are expensive.
		w.Header().Set("Connection", "close")
	}
	writeStatus(w, apierrors.NewUnauthorized("Unauthorized"))
})

type recordKey struct{}

type record struct {
	http.ResponseWriter
	received                time.Time
	long                    bool // a watch or an upgrade
	userInfo                user.Info
	shard, cluster, auditID string
	code                    int
	bytes                   int64
	// status is the response of the front-proxy itself, if any.
	status metav1.Status
	path   parsedPath
	// token is a token of the development cluster in the request, if any.
	token string
	// forwarded is set if a shard has responded, and therefore audited the request.
	forwarded bool
}

func (rec *record) user() string {
	if rec.userInfo == nil {
		return ""
	}
	return rec.userInfo.GetName()
}

// recordFrom returns the record of a request, or an empty one.
func recordFrom(ctx context.Context) *record {
	if rec, ok := ctx.Value(recordKey{}).(*record); ok {
		return rec
	}
	return &record{received: time.Now()}
}

func recordOf(w http.ResponseWriter) *record {
	for {
		switch of := w.(type) {
		case *record:
			return of
		case interface{ Unwrap() http.ResponseWriter }:
			w = of.Unwrap()
		default:
			return nil
		}
	}
}

func (rec *record) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

func (rec *record) WriteHeader(code int) {
	if rec.code == 0 && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		rec.code = code
	}
	rec.ResponseWriter.WriteHeader(code)
}

func (rec *record) Write(p []byte) (int, error) {
	rec.code = cmp.Or(rec.code, http.StatusOK)
	n, err := rec.ResponseWriter.Write(p)
	rec.bytes += int64(n)
	return n, err
}

// codeLabel returns the metrics label of a status code. Unknown codes, e.g. of tenants' servers, share one.
func codeLabel(code int) string {
	if http.StatusText(code) == "" && code != statusClientClosed {
		return "other"
	}
	return strconv.Itoa(code)
}

// withAccounting adds requests to running, including those with upgraded connections, which http.Server does not wait for.
func withAccounting(next http.Handler, m *metrics, running *waitgroup.SafeWaitGroup, audit func(r *http.Request, rec *record, received time.Time)) http.Handler {
	short, long := m.requestsInFlight.WithLabelValues("short"), m.requestsInFlight.WithLabelValues("long")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if running.Add(1) == nil { // the server does not wait for later ones
			defer running.Done()
		}
		start := time.Now()
		path := parsedPath{}.of(r)
		rec := &record{ResponseWriter: w, received: start, path: path, long: isLongRunning(r, path)}
		inFlight := short
		if rec.long {
			inFlight = long
			rec.ResponseWriter = responses.Stream(w, r)
		}
		inFlight.Inc()
		defer func() { //nolint:contextcheck // it has the context of the request
			inFlight.Dec()
			rec.code = cmp.Or(rec.code, statusClientClosed)
			m.requestsTotal.WithLabelValues(rec.shard, codeLabel(rec.code)).Inc()
			audit(r, rec, start)
			took := time.Since(start)
			if !rec.long {
				m.requestSeconds.WithLabelValues(rec.shard).Observe(took.Seconds())
			}
			if logger := klog.FromContext(r.Context()).V(accessLogLevel); logger.Enabled() {
				logger.Info("Request", "method", r.Method, "path", r.URL.Path, "query", r.URL.RawQuery, "code", rec.code,
					"user", rec.user(), "shard", rec.shard, "auditID", rec.auditID, "took", took, "bytes", rec.bytes, "agent", r.UserAgent(), "client", r.RemoteAddr)
			}
		}()
		next.ServeHTTP(rec, r.WithContext(context.WithValue(r.Context(), recordKey{}, rec)))
	})
}

type metrics struct {
	requestsTotal, upstreamErrors, indexWaits *prometheus.CounterVec
	requestSeconds                            *prometheus.HistogramVec
	requestsInFlight                          *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	return &metrics{
		requestsTotal: instruments.NewCounterVec(registerer, "shardplane_frontproxy_requests_total",
			"Requests, by shard (empty if the front-proxy itself responded) and status code.", "shard", "code"),
		upstreamErrors: instruments.NewCounterVec(registerer, "shardplane_frontproxy_upstream_errors_total",
			"Requests without a response from the shard, by shard and reason: unreachable (nothing was sent) or broken (the connection failed later).", "shard", "reason"),
		indexWaits: instruments.NewCounterVec(registerer, "shardplane_frontproxy_index_waits_total",
			"Requests for logical clusters that were unknown at first, by result: found, canceled (the client disconnected), timeout or throttled (too many pending requests).", "result"),
		requestSeconds: instruments.NewHistogramVec(registerer, []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
			"shardplane_frontproxy_request_duration_seconds", "Duration of requests other than watches and upgraded connections, by shard.", "shard"),
		requestsInFlight: instruments.NewGaugeVec(registerer, "shardplane_frontproxy_requests_in_flight",
			"Requests in flight, by kind: short or long (watches and upgraded connections).", "kind"),
	}
}
