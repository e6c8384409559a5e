package frontproxy

import (
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/answers"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// handler is what requests pass on their way to the router.
type handler struct {
	router *router
	health *health
	audit  auditor
	// authentication tells who a request is from.
	authentication *authn.Authentication
	// identity are the headers by which shards, and the servers of the mapping file, are told who
	// somebody is.
	identity identityHeaders
	// bodies say how long bodies of requests take at most.
	bodies bodies.Rate
	// inFlight and watches are what each user has of requests and of streams.
	inFlight, watches *ledger.Ledger
	metrics           *metrics
	requests          tracker
}

// chain is what everything passes before the router.
func (h *handler) chain() serving.Chain {
	return serving.Chain{
		serving.LongPaths(),
		serving.AnswerGuard(),
		serving.BodyGuard(h.bodies),
		serving.NewFilter("panic recovery", "500 for requests that crash", withPanicRecovery),
		serving.MaskTokens(),
		serving.NewFilter("accounting", "metrics, the log, and audit events of what is answered here", func(next http.Handler) http.Handler {
			return withAccounting(next, h.metrics, &h.requests, h.audit.record)
		}),
		serving.NewFilter("probes", "/livez, /readyz and /healthz, for everybody", func(next http.Handler) http.Handler {
			return serving.WithReadinessWarnings(withProbes(next, h.health.liveness(), h.health.readiness()), h.health.shards.warnings)
		}),
		serving.NewFilter("stop", "connections close after the answer, of a server that is to stop", h.health.withStop),
		serving.NewFilter("token's cluster", "a service account's logical cluster, where the URL has none", authn.WithTokenCluster),
		serving.NewFilter("credentials", "headers about users go, from outside they count for nothing", func(next http.Handler) http.Handler {
			return withCredentials(next, h.identity, h.router.devTokens)
		}),
		serving.NewFilter("target", "the path is kept, for the issuers of the logical cluster in it", withTarget),
		serving.NewFilter("authentication", "who it is; 401", func(next http.Handler) http.Handler {
			return apifilters.WithAuthentication(next, h.authentication.Authenticator, unauthorized, h.authentication.Audiences, nil)
		}),
		serving.Connections(nil, tooMany),
		serving.NewFilter("limits", "429 above --limit requests-per-user and watches-per-user", h.withLimits),
		serving.NewFilter("unread", "answers that are not read end, where too much of them is in memory", func(next http.Handler) http.Handler {
			return answers.WithForwarded(next, ahead)
		}),
	}
}

// tooMany answers requests that are one too many.
func tooMany(w http.ResponseWriter, _ *http.Request, why string) {
	writeStatus(w, statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon, "%s, try again later", why))
}

// withLimits bounds the requests that one user has in flight, and the streams, which take
// memory here as long as they last.
func (h *handler) withLimits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		resource := h.inFlight
		if r.Header.Get("Upgrade") != "" || isWatch(r) {
			resource = h.watches
		}
		give, err := resource.TakeFor(r.Context(), 1+ledger.OfHeaders(r))
		if err != nil {
			tooMany(w, r, err.Error())
			return
		}
		defer give()
		next.ServeHTTP(w, r)
	})
}

// withPanicRecovery answers requests that crash, and logs why. Streams that the
// other side broke are broken towards the client too, silently.
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
			klog.FromContext(r.Context()).Error(nil, "A request crashed", "panic", reason, "method", r.Method, "path", r.URL.Path)
			writeStatus(w, statusError(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0, "internal error, see the log of the front-proxy"))
		}()
		next.ServeHTTP(w, r)
	})
}
