package serving

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"

	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/connections"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/serving/responses"
	"github.com/shardplane/shardplane/pkg/serving/watchdog"
)

// ResponseGuard returns the filter that ends responses which the client does not read.
func ResponseGuard() Filter {
	return Filter{"response deadline", "ends unread responses after 2 minutes, and stalled watches after one minute", responses.WithGuard}
}

// ResponseFilters are the filters for responses. They must come after fairness, because the requests of slow clients
// release their seats.
func ResponseFilters(c *genericapiserver.Config) Chain {
	return Chain{
		{"streams", "sets a deadline for each event of a watch", func(next http.Handler) http.Handler { return responses.WithStreams(next, c.LongRunningFunc) }},
		{"pause", "releases the seats of requests whose clients do not read", responses.WithPause},
		{"list buffer", "writes lists in large pieces", WithListBuffer},
	}
}

// BodyGuard returns the filter that ends slow request bodies.
func BodyGuard() Filter {
	return Filter{"body guard", "ends slow request bodies", bodies.WithGuard}
}

// Bodies returns the filter that reads request bodies before requests use shared resources.
func Bodies(c *genericapiserver.Config, limits ledger.Limits, registerer prometheus.Registerer) Filter {
	return Filter{"bodies", "reads bodies, within --limit body-bytes and body-bytes-per-user; 408, 413, 429", func(next http.Handler) http.Handler {
		return bodies.NewReader(limits, c.MaxRequestBodyBytes, registerer).Wrap(next, c.LongRunningFunc, func(w http.ResponseWriter, r *http.Request, err error) { respond(w, r, c.Serializer, err) })
	}}
}

// Connections returns the filter that limits the connections of each user (429). forwarded reports
// whether a request comes from a server that forwards requests of many users; it may be nil.
func Connections(forwarded func(*http.Request) bool, refuse ledger.Refuse) Filter {
	return Filter{"connections", "assigns the connection to the user; 429 above --limit connections-per-user", func(next http.Handler) http.Handler {
		return connections.WithOwner(next, forwarded, refuse)
	}}
}

// EarlyFilters are the filters that need no information about the request.
func EarlyFilters(c *genericapiserver.Config) Chain {
	return Chain{
		LongPaths(),
		ResponseGuard(),
		BodyGuard(),
		MaskTokens(),
		{"audit ID", "generates an audit ID if the client sends none", apifilters.WithAuditInit},
		{"received", "records the time of arrival", apifilters.WithRequestReceivedTimestamp},
		{"audit URI", "records the original URI for audit events", when(c.AuditBackend != nil, withAuditURI)},
	}
}

// AuthenticationFilters are kube-apiserver's filters up to authentication and audit. They must come after the
// filters that determine the scope, because metrics of panics are also by resource.
func AuthenticationFilters(c *genericapiserver.Config) Chain {
	return Chain{
		{"panic recovery", "returns 500 for requests that panic", func(next http.Handler) http.Handler {
			return genericfilters.WithPanicRecovery(next, c.RequestInfoResolver)
		}},
		{"request info", "parses the path into API group, resource, namespace and name", func(next http.Handler) http.Handler {
			return apifilters.WithRequestInfo(next, c.RequestInfoResolver)
		}},
		{"routine", "continues in a goroutine with a small stack (gate APIServingWithRoutine)", func(next http.Handler) http.Handler {
			if !c.FeatureGate.Enabled(features.APIServingWithRoutine) {
				return next
			}
			return routine.WithRoutine(next, c.LongRunningFunc)
		}},
		{"latency trackers", "measures webhooks, storage and encoding", apifilters.WithLatencyTrackers},
		{"HTTP log", "logs each request at -v=3", genericfilters.WithHTTPLogging},
		{"cache control", "disables HTTP caches", apifilters.WithCacheControl},
		{"wait group", "delays the shutdown until requests in flight end", func(next http.Handler) http.Handler {
			return genericfilters.WithWaitGroup(next, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
		}},
		{"deadline", "sets a deadline of one minute, or less if the client requests it", func(next http.Handler) http.Handler {
			return apifilters.WithRequestDeadline(next, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
		}},
		{"timeout", "ends the context shortly before the deadline, and returns 504 at the deadline", func(next http.Handler) http.Handler {
			return genericfilters.WithTimeoutForNonLongRunningRequests(withResponseMargin(next), c.LongRunningFunc)
		}},
		{"stack", "grows the stack once, except for watches", func(next http.Handler) http.Handler { return withStack(next, c.LongRunningFunc) }},
		{"warnings", "adds warnings to the response header", apifilters.WithWarningRecorder},
		{"authentication", "determines the user; 401", tracked(c, "authentication", func(next http.Handler) http.Handler {
			failed := apifilters.WithFailedAuthenticationAudit(apifilters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator)
			return apifilters.WithAuthentication(next, c.Authentication.Authenticator, filterlatency.TrackCompleted(failed), c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
		})},
		{"tracing", "continues the trace of the client", func(next http.Handler) http.Handler { return apifilters.WithTracing(next, c.TracerProvider) }},
		{"audit", "records an event for each stage", tracked(c, "audit", func(next http.Handler) http.Handler {
			return apifilters.WithAudit(next, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
		})},
	}
}

// Decision are kube-apiserver's filters for impersonation and authorization. Limits must come after
// them. The filters in between need the impersonated user.
func Decision(c *genericapiserver.Config, between ...Filter) Chain {
	return slices.Concat(Chain{
		{"impersonation", "changes the user; 403, or 503 if undecided", func(next http.Handler) http.Handler {
			name, filter := "impersonation", impersonation.WithImpersonation
			if c.FeatureGate.Enabled(features.ConstrainedImpersonation) {
				name, filter = "constrainedimpersonation", impersonation.WithConstrainedImpersonation
			}
			return tracked(c, name, func(next http.Handler) http.Handler {
				return withRetries(next, c.Authorization.Authorizer, c.Serializer, filter)
			})(next)
		}},
	}, between, Chain{
		{"authorization", "authorizes the request; 403, or 503 if undecided", tracked(c, "authorization", func(next http.Handler) http.Handler {
			return withRetries(next, c.Authorization.Authorizer, c.Serializer, apifilters.WithAuthorization)
		})},
	})
}

// InFlight returns the filter that limits concurrent requests. Behind fairness, queued requests are not counted.
func InFlight(c *genericapiserver.Config, registerer prometheus.Registerer) Filter {
	executing := ledger.NewExecuting(c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, registerer)
	return Filter{"requests in flight", "429 above --max-requests-inflight and --max-mutating-requests-inflight", func(next http.Handler) http.Handler {
		// It replaces upstream's hook for the metrics of upstream's filter.
		c.AddPostStartHookOrDie("max-in-flight-filter", func(hook genericapiserver.PostStartHookContext) error {
			go executing.Report(hook)
			return nil
		})
		return executing.Wrap(next, c.LongRunningFunc, TooMany(c))
	}}
}

// RequestLimits returns the filter that limits the requests in flight of each logical cluster and user.
func RequestLimits(c *genericapiserver.Config, limits ledger.Limits, registerer prometheus.Registerer) Filter {
	requests := limits.Ledger(ledger.RequestsResource, 0, registerer)
	return Filter{"request limits", "429 above --limit requests-per-cluster and requests-per-user", func(next http.Handler) http.Handler {
		return requests.Wrap(next, func(r *http.Request, info *apirequest.RequestInfo) int64 {
			if c.LongRunningFunc(r, info) {
				return 0
			}
			return 1 + ledger.OfHeaders(r)
		}, TooMany(c))
	}}
}

// Watchdog returns the filters for requests that compute after their context has ended. throttle rejects new
// requests of their users. watched must come after all filters that assign resources to requests.
func Watchdog(c *genericapiserver.Config, registerer prometheus.Registerer) (throttle, watched Filter) {
	dog := watchdog.NewWatchdog(registerer)
	throttle = Filter{"watchdog", "429 while too many earlier requests compute after their end", func(next http.Handler) http.Handler {
		return dog.Throttle(next, TooMany(c))
	}}
	watched = Filter{"watched requests", "keeps the seats of requests that compute after their end", func(next http.Handler) http.Handler {
		return dog.Watch(next, c.LongRunningFunc)
	}}
	return throttle, watched
}

// WatchLimits returns the filter that limits the open watches of each logical cluster and user.
func WatchLimits(c *genericapiserver.Config, limits ledger.Limits, registerer prometheus.Registerer) Filter {
	watches := limits.Ledger(ledger.WatchesResource, 0, registerer)
	return Filter{"watch limits", "429 above --limit watches-per-cluster and watches-per-user", func(next http.Handler) http.Handler {
		return watches.Wrap(next, func(r *http.Request, info *apirequest.RequestInfo) int64 {
			if !c.LongRunningFunc(r, info) {
				return 0
			}
			return watchSlots(r) + ledger.OfHeaders(r)
		}, TooMany(c))
	}}
}

// WatchBytes returns the filter that limits the memory of large watch events of each logical cluster and user.
func WatchBytes(c *genericapiserver.Config, limits ledger.Limits, registerer prometheus.Registerer) Filter {
	held := limits.Ledger(ledger.WatchBytesResource, 0, registerer)
	return Filter{"watch bytes", "ends watches above --limit watch-bytes-per-cluster and watch-bytes-per-user; 429", func(next http.Handler) http.Handler {
		return responses.WithWatchBytes(next, held, c.LongRunningFunc, TooMany(c))
	}}
}

// TooMany returns the function that rejects requests above a limit.
func TooMany(c *genericapiserver.Config) ledger.Refuse {
	return func(w http.ResponseWriter, r *http.Request, why string) {
		const retryAfter = 1
		respond(w, r, c.Serializer, apierrors.NewTooManyRequests(why+", try again later", retryAfter))
	}
}

func tracked(c *genericapiserver.Config, name string, wrap func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return filterlatency.TrackStarted(wrap(filterlatency.TrackCompleted(next)), c.TracerProvider, name)
	}
}

// withRetries returns upstream's filter for authorization or impersonation, which responds with 500 or 403 to all
// errors of the authorizer. If an error suggests a delay, or the request deadline has passed, the first such error
// becomes the response instead, unless the request is finally allowed. The filter must be created only once, because
// it contains upstream's impersonation caches.
func withRetries(
	next http.Handler, a authorizer.UnconditionalAuthorizer, s runtime.NegotiatedSerializer,
	filter func(http.Handler, authorizer.UnconditionalAuthorizer, runtime.NegotiatedSerializer) http.Handler,
) http.Handler {
	filtered := filter(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			upstreams := replacedFrom(r.Context())
			upstreams.by = nil
			next.ServeHTTP(upstreams.ResponseWriter, r)
		}),
		authorizer.AuthorizerFunc(func(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
			decision, reason, err := a.Authorize(ctx, attributes)
			if upstreams := replacedFrom(ctx); decision != authorizer.DecisionAllow && upstreams.by == nil {
				upstreams.by = retryable(ctx, err)
			}
			return decision, reason, err
		}), s)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upstreams := &replaced{ResponseWriter: w}
		filtered.ServeHTTP(upstreams, r.WithContext(context.WithValue(r.Context(), replacedKey{}, upstreams)))
		if upstreams.by != nil {
			respond(w, r, s, upstreams.by)
		}
	})
}

// retryable returns the status of an error that suggests a delay, a timeout error after the deadline, or nil.
func retryable(ctx context.Context, err error) *apierrors.StatusError {
	var status apierrors.APIStatus
	if _, later := apierrors.SuggestsClientDelay(err); later && errors.As(err, &status) {
		return &apierrors.StatusError{ErrStatus: status.Status()}
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return apierrors.NewTimeoutError("the request timed out before it was authorized", 0)
	}
	return nil
}

// replaced is a response that is discarded if by is set.
type replaced struct {
	http.ResponseWriter
	by *apierrors.StatusError
}

type replacedKey struct{}

// replacedFrom returns the response of the innermost filter, which is the one that calls the authorizer.
func replacedFrom(ctx context.Context) *replaced {
	a, _ := ctx.Value(replacedKey{}).(*replaced)
	return a
}

func (a *replaced) Header() http.Header {
	if a.by != nil {
		return http.Header{}
	}
	return a.ResponseWriter.Header()
}

func (a *replaced) WriteHeader(code int) {
	if a.by == nil {
		a.ResponseWriter.WriteHeader(code)
	}
}

func (a *replaced) Write(data []byte) (int, error) {
	if a.by != nil {
		return len(data), nil //nolint:nilerr // the response is discarded
	}
	return a.ResponseWriter.Write(data)
}
