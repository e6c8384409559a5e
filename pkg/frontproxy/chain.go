package frontproxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/authentication/user"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/serving/responses"
)

type handler struct {
	router         *router
	health         *health
	ownResponses   *serving.OwnResponses // nil without an audit log
	authentication *authn.Authentication
	// identity are the headers that identify users to shards and to the servers of the mapping file.
	identity          identityHeaders
	inFlight, watches *ledger.Ledger
	metrics           *metrics
	requests          waitgroup.SafeWaitGroup
}

func (h *handler) chain() serving.Chain {
	return serving.Chain{
		serving.LongPaths(),
		serving.ResponseGuard(),
		serving.BodyGuard(),
		serving.NewFilter("panic recovery", "returns 500 for requests that panic", withPanicRecovery),
		serving.MaskTokens(),
		serving.NewFilter("accounting", "updates metrics and logs, and audits requests that are not forwarded", func(next http.Handler) http.Handler {
			return withAccounting(next, h.metrics, &h.requests, h.audit)
		}),
		serving.NewFilter("probes", "serves /livez, /readyz and /healthz without authentication", func(next http.Handler) http.Handler {
			return serving.WithReadinessWarnings(withProbes(next, h.health), h.health.shards.warnings)
		}),
		serving.NewFilter("stop", "closes connections during shutdown", h.health.withStop),
		serving.NewFilter("token's cluster", "uses the logical cluster of a service account token if the URL contains none", authn.WithTokenCluster),
		serving.NewFilter("credentials", "removes identity headers of clients", func(next http.Handler) http.Handler {
			return withCredentials(next, h.identity, h.router.devTokens)
		}),
		serving.NewFilter("target", "records the path for issuers of the logical cluster", withTarget),
		serving.NewFilter("authentication", "determines the user; 401", func(next http.Handler) http.Handler {
			return apifilters.WithAuthentication(next, h.authentication.Authenticator, unauthorized, h.authentication.Audiences, nil)
		}),
		serving.Connections(nil, writeTooManyRequests),
		serving.NewFilter("limits", "429 above --limit requests-per-user and watches-per-user", h.withLimits),
		serving.NewFilter("unread responses", "ends unread responses that use too much memory", func(next http.Handler) http.Handler {
			return responses.WithForwarded(next, readAhead)
		}),
	}
}

// withTarget records the request path for authentication, because the logical cluster may have its own issuers. The
// path may have changed since the request arrived.
func withTarget(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := recordFrom(r.Context())
		rec.path = rec.path.of(r)
		rec.long = isLongRunning(r, rec.path)
		next.ServeHTTP(w, r)
	})
}

func writeTooManyRequests(w http.ResponseWriter, _ *http.Request, why string) {
	writeStatus(w, statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon, "%s, try again later", why))
}

// withLimits limits the requests in flight and the streams of each user. Streams use memory as long as they last.
func (h *handler) withLimits(next http.Handler) http.Handler {
	count := func(long bool) func(*http.Request, *genericapirequest.RequestInfo) int64 {
		return func(r *http.Request, _ *genericapirequest.RequestInfo) int64 {
			if recordFrom(r.Context()).long != long {
				return 0
			}
			return 1 + ledger.OfHeaders(r)
		}
	}
	return h.inFlight.Wrap(h.watches.Wrap(next, count(true), writeTooManyRequests), count(false), writeTooManyRequests)
}

// withPanicRecovery returns 500 for requests that panic, and logs the reason. If the server broke a
// stream, the stream to the client is aborted as well, without a log message.
func withPanicRecovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { //nolint:contextcheck // it has the context of the request
			reason := recover()
			if reason == nil {
				return
			}
			if err, ok := reason.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(reason)
			}
			klog.FromContext(r.Context()).Error(nil, "Request panicked", "panic", reason, "method", r.Method, "path", r.URL.Path)
			writeStatus(w, statusError(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0, "internal error, see the log of the front-proxy"))
		}()
		next.ServeHTTP(w, r)
	})
}

type health struct {
	shards   *shards
	stopping atomic.Bool
	wasReady atomic.Bool
}

func (h *health) ready() error {
	if h.stopping.Load() {
		return errors.New("the front-proxy is shutting down")
	}
	if h.wasReady.Load() {
		return nil
	}
	if err := h.shards.ready(); err != nil {
		return err
	}
	h.wasReady.Store(true)
	return nil
}

func withProbes(next http.Handler, h *health) http.Handler {
	mux := http.NewServeMux()
	healthz.InstallPathHandler(mux, "/healthz", healthz.PingHealthz)
	healthz.InstallPathHandler(mux, "/livez", healthz.PingHealthz)
	healthz.InstallPathHandler(mux, "/readyz", healthz.PingHealthz, healthz.NamedCheck("shards", func(*http.Request) error { return h.ready() }))
	open := authn.ProbePaths()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(open, r.URL.Path) {
			mux.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withStop closes connections during shutdown (in HTTP/2 by a GOAWAY), so that clients connect to another server.
func (h *health) withStop(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.stopping.Load() && r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// audit audits a request unless a shard has already done so. Probes are not audited.
func (h *handler) audit(r *http.Request, rec *record, received time.Time) {
	if h.ownResponses == nil || rec.forwarded || slices.Contains(authn.ProbePaths(), r.URL.Path) {
		return
	}
	response := serving.OwnResponse{Request: r, User: rec.userInfo, AuditID: rec.auditID, Received: received, Status: rec.status}
	if response.AuditID == "" {
		response.AuditID = ensureAuditID(r)
	}
	response.Status.Code = int32(rec.code)
	switch {
	case rec.code == http.StatusUnauthorized:
		response.Status.Message = "authentication failed: " + credentialKinds(r)
	case rec.code == statusClientClosed:
		response.Status.Message = "the client disconnected before the response"
	case response.Status.Status == "":
		response.Status.Status = metav1.StatusSuccess
	}
	rest := r.URL.EscapedPath()
	if strings.HasPrefix(rest, request.Clusters.Prefix) || strings.HasPrefix(rest, request.ServicesPrefix) || strings.HasPrefix(rest, shardsPrefix) {
		if path := rec.path.of(r); path.err == nil {
			rest = path.at.rest
			response.Cluster, response.Path = clusterOf(path.at, rec.cluster)
		}
	}
	path := unescapedRest(rest)
	var err error
	if response.Info, err = requestInfo(r, path); err != nil {
		response.Info = &genericapirequest.RequestInfo{Path: path, Verb: strings.ToLower(r.Method)}
	}
	h.ownResponses.Record(response)
}

// credentialKinds describes the kind of credentials of an unauthenticated request, without disclosing them.
func credentialKinds(r *http.Request) string {
	var credentials []string
	if _, token := authn.BearerToken(r.Header); token || r.Header.Get("Authorization") != "" {
		credentials = append(credentials, "a token")
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		credentials = append(credentials, "a certificate")
	}
	if len(credentials) == 0 {
		return "no credentials"
	}
	return strings.Join(credentials, " and ") + " that is invalid or expired"
}

func (rt *router) serveMetrics(w http.ResponseWriter, r *http.Request) {
	userInfo, ok := genericapirequest.UserFrom(r.Context())
	may := ok && mayReadProcess(r.Context(), userInfo)
	if ok && !may {
		var err error
		if may, err = rt.mayReadMetrics(r.Context(), userInfo); err != nil {
			klog.FromContext(r.Context()).Error(err, "Failed to authorize access to metrics", "user", userInfo.GetName())
			writeStatus(w, unavailable("access to metrics could not be authorized, because the root shard did not respond"))
			return
		}
	}
	if !may {
		writeStatus(w, forbidden(r, r.URL.Path))
		return
	}
	rt.metrics.ServeHTTP(w, r)
}

// serveProfiles serves profiles of this process at the same paths as kube-apiserver.
func (*router) serveProfiles(w http.ResponseWriter, r *http.Request) {
	userInfo, ok := genericapirequest.UserFrom(r.Context())
	if !ok || !mayReadProcess(r.Context(), userInfo) {
		writeStatus(w, forbidden(r, r.URL.Path))
		return
	}
	w = responses.Stream(w, r)
	switch strings.TrimPrefix(r.URL.Path, serving.ProfilesPrefix) {
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}

func mayReadProcess(ctx context.Context, userInfo user.Info) bool {
	return identity.MemberOf(ctx, userInfo, user.SystemPrivilegedGroup, request.GroupAdmin)
}

const (
	readersFor     = 10 * time.Second // how long decisions are cached
	readersTimeout = 5 * time.Second
)

// mayReadMetrics reports whether a user is allowed to get /metrics in root. It returns an error if root did not respond.
func (rt *router) mayReadMetrics(ctx context.Context, userInfo user.Info) (bool, error) {
	review := authz.ReviewOf(rt.forwarded(userInfo))
	review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	return rt.readers.May(ctx, "", review, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, readersTimeout)
		defer cancel()
		return authz.RequestDeepReview(ctx, rt.shards.root.Cluster(core.RootCluster.Path()), review)
	})
}
