package serving

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"

	"github.com/shardplane/shardplane/pkg/serving/answers"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/connections"
	"github.com/shardplane/shardplane/pkg/serving/inflight"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/serving/watchbytes"
	"github.com/shardplane/shardplane/pkg/serving/watchdog"
)

// AnswerGuard returns the filter that gives up answers that nobody reads.
func AnswerGuard() Filter {
	return Filter{"answer guard", "answers that are not read end, after 2 minutes, or of watches after one without progress", answers.WithGuard}
}

// Answers are the filters around what makes answers: for those that last, see
// answers.Stream; lists, which are written in large pieces; and requests whose clients
// do not read, which take no seat meanwhile. They stand behind fairness.
func Answers(c *genericapiserver.Config) Chain {
	return Chain{
		{"streams", "each event of a watch has its time", func(next http.Handler) http.Handler { return answers.WithStreams(next, c.LongRunningFunc) }},
		{"pause", "who does not read takes no seat", answers.WithPause},
		{"list buffer", "lists are written in large pieces", WithListBuffer},
	}
}

// BodyGuard returns the filter that gives up bodies that take too long.
func BodyGuard(limits bodies.Rate) Filter {
	return Filter{"body guard", "bodies that are too slow end", func(next http.Handler) http.Handler { return bodies.WithGuard(next, limits) }}
}

// Bodies returns the filter that reads bodies before requests take anything that
// others need.
func Bodies(c *genericapiserver.Config, limits ledger.Limits, registerer prometheus.Registerer) Filter {
	return Filter{"bodies", "into memory, within --limit body-bytes and body-bytes-per-user; 408, 413, 429", func(next http.Handler) http.Handler {
		return bodies.NewReader(limits, c.MaxRequestBodyBytes, registerer).Wrap(next, c.LongRunningFunc, func(w http.ResponseWriter, r *http.Request, err error) { respond(w, r, c.Serializer, err) })
	}}
}

// Connections returns the filter that bounds the connections of each user. forwarded
// reports whether a request comes from who forwards those of many; it may be nil.
// refuse answers with 429, saying why.
func Connections(forwarded func(*http.Request) bool, refuse ledger.Refuse) Filter {
	return Filter{"connections", "whose connection it is; 429 above --limit connections-per-user", func(next http.Handler) http.Handler {
		return connections.WithOwner(next, forwarded, refuse)
	}}
}

// Arrival are the filters that need to know nothing of a request.
func Arrival(c *genericapiserver.Config, limits bodies.Rate) Chain {
	return Chain{
		LongPaths(),
		AnswerGuard(),
		BodyGuard(limits),
		MaskTokens(),
		{"audit ID", "an ID for each request, the client's or a new one", apifilters.WithAuditInit},
		{"received", "when it came", apifilters.WithRequestReceivedTimestamp},
		{"audit URI", "the URI as the client sent it, for audit events", when(c.AuditBackend != nil, withAuditURI)},
	}
}

// Reception are kube-apiserver's filters from what a request asks for to who
// asks: up to the first decision about it. They stand behind what finds the
// scope: metrics of crashes, too, are by resource.
func Reception(c *genericapiserver.Config) Chain {
	return Chain{
		{"panic recovery", "500 for requests that crash", func(next http.Handler) http.Handler {
			return genericfilters.WithPanicRecovery(next, c.RequestInfoResolver)
		}},
		{"request info", "verb, API group, resource, namespace and name", func(next http.Handler) http.Handler {
			return apifilters.WithRequestInfo(next, c.RequestInfoResolver)
		}},
		{"routine", "a goroutine with a small stack for what follows (gate APIServingWithRoutine)", func(next http.Handler) http.Handler {
			if !c.FeatureGate.Enabled(features.APIServingWithRoutine) {
				return next
			}
			return routine.WithRoutine(next, c.LongRunningFunc)
		}},
		{"latency trackers", "how long webhooks, storage and encodings take", apifilters.WithLatencyTrackers},
		{"HTTP log", "each request in the log, from -v=3 on", genericfilters.WithHTTPLogging},
		{"cache control", "no answer is for caches on the way", apifilters.WithCacheControl},
		{"wait group", "a server that stops waits for requests in flight", func(next http.Handler) http.Handler {
			return genericfilters.WithWaitGroup(next, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
		}},
		{"deadline", "a minute, or less if the client says so", func(next http.Handler) http.Handler {
			return apifilters.WithRequestDeadline(next, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
		}},
		{"timeout", "504 at the deadline, whatever the request does", func(next http.Handler) http.Handler {
			return genericfilters.WithTimeoutForNonLongRunningRequests(next, c.LongRunningFunc)
		}},
		{"stack", "room on the stack for what follows, but for watches", func(next http.Handler) http.Handler { return withStack(next, c.LongRunningFunc) }},
		{"warnings", "warnings become headers", apifilters.WithWarningRecorder},
		{"authentication", "who it is; 401", tracked(c, "authentication", func(next http.Handler) http.Handler {
			failed := apifilters.WithFailedAuthenticationAudit(apifilters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator)
			return apifilters.WithAuthentication(next, c.Authentication.Authenticator, filterlatency.TrackCompleted(failed), c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
		})},
		{"tracing", "the client's trace goes on", func(next http.Handler) http.Handler { return apifilters.WithTracing(next, c.TracerProvider) }},
		{"audit", "an event for each stage", tracked(c, "audit", func(next http.Handler) http.Handler {
			return apifilters.WithAudit(next, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
		})},
	}
}

// Decision are kube-apiserver's filters that let a request pass or refuse it.
// Limits come behind it: they are for those who may do what they ask for. Between stands
// what has to know who it is, and comes before the decision.
func Decision(c *genericapiserver.Config, between ...Filter) Chain {
	return slices.Concat(Chain{
		{"impersonation", "who it is to be instead; 403, and 503 before that is known", func(next http.Handler) http.Handler {
			name, filter := "impersonation", impersonation.WithImpersonation
			if c.FeatureGate.Enabled(features.ConstrainedImpersonation) {
				name, filter = "constrainedimpersonation", impersonation.WithConstrainedImpersonation
			}
			return tracked(c, name, func(next http.Handler) http.Handler {
				return withRetries(next, c.Authorization.Authorizer, c.Serializer, filter)
			})(next)
		}},
	}, between, Chain{
		{"authorization", "whether it may do so; 403, and 503 before that is known", tracked(c, "authorization", func(next http.Handler) http.Handler {
			return withRetries(next, c.Authorization.Authorizer, c.Serializer, apifilters.WithAuthorization)
		})},
	})
}

// InFlight returns the bound of requests that the server of c executes at a time.
// Behind fairness, it does not count what waits there.
func InFlight(c *genericapiserver.Config, registerer prometheus.Registerer) Filter {
	executing := inflight.NewExecuting(c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, registerer)
	return Filter{"requests in flight", "429 above --max-requests-inflight and --max-mutating-requests-inflight; what is paused does not count", func(next http.Handler) http.Handler {
		// In place of upstream's hook, which reports what upstream's filter counts.
		c.AddPostStartHookOrDie("max-in-flight-filter", func(hook genericapiserver.PostStartHookContext) error {
			go executing.Report(hook)
			return nil
		})
		return executing.Wrap(next, c.LongRunningFunc, TooMany(c))
	}}
}

// RequestLimits returns the limits of requests in flight of each logical cluster and of each user.
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

// Watchdog returns the filters for requests that go on computing after their context has ended: throttle
// refuses those of whom such requests compute, and watched, which stands behind all that gives requests
// something, returns when they end.
func Watchdog(c *genericapiserver.Config, registerer prometheus.Registerer) (throttle, watched Filter) {
	dog := watchdog.New(watchdog.Config{Metrics: registerer})
	throttle = Filter{"watchdog", "429 while requests of the user, or several of the logical cluster, compute after their end", func(next http.Handler) http.Handler {
		return dog.Throttle(next, TooMany(c))
	}}
	watched = Filter{"watched requests", "what computes after its end keeps its seat", func(next http.Handler) http.Handler {
		return dog.Watch(next, c.LongRunningFunc)
	}}
	return throttle, watched
}

// WatchLimits returns the limits of open watches of each logical cluster and of each user.
func WatchLimits(c *genericapiserver.Config, limits ledger.Limits, registerer prometheus.Registerer) Filter {
	watches := limits.Ledger(ledger.WatchesResource, 0, registerer)
	return Filter{"watch limits", "429 above --limit watches-per-cluster and watches-per-user", func(next http.Handler) http.Handler {
		return watches.Wrap(next, func(r *http.Request, info *apirequest.RequestInfo) int64 {
			if !c.LongRunningFunc(r, info) {
				return 0
			}
			return watchPlaces(r) + ledger.OfHeaders(r)
		}, TooMany(c))
	}}
}

// WatchBytes returns the limits of what the watches of each logical cluster, and of each
// user, hold of large events.
func WatchBytes(c *genericapiserver.Config, limits ledger.Limits, registerer prometheus.Registerer) Filter {
	held := limits.Ledger(ledger.WatchBytesResource, 0, registerer)
	return Filter{"watch bytes", "watches with large events end above --limit watch-bytes-per-cluster and watch-bytes-per-user; 429", func(next http.Handler) http.Handler {
		return watchbytes.Wrap(next, held, c.LongRunningFunc, TooMany(c))
	}}
}

// TooMany returns what answers requests that are one too many.
func TooMany(c *genericapiserver.Config) ledger.Refuse {
	return func(w http.ResponseWriter, r *http.Request, why string) {
		const retryAfter = 1
		respond(w, r, c.Serializer, apierrors.NewTooManyRequests(why+", try again later", retryAfter))
	}
}

// tracked has metrics and traces say how long a filter takes.
func tracked(c *genericapiserver.Config, name string, wrap func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return filterlatency.TrackStarted(wrap(filterlatency.TrackCompleted(next)), c.TracerProvider, name)
	}
}
