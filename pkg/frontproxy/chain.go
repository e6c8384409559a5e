package frontproxy

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/answers"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// statusClientGone stands in metrics and logs for requests whose client
	// left before the answer.
	statusClientGone = 499
	// accessLogLevel is the verbosity at which every request is logged.
	accessLogLevel = 3
)

// mapping says what serves the paths that start with prefix, or, if exact, that
// are equal to it. The first mapping that fits serves.
type mapping struct {
	prefix string
	exact  bool
	serve  func(s *Server, w http.ResponseWriter, r *http.Request)
}

func (m *mapping) fits(path string) bool {
	return path == m.prefix || (!m.exact && strings.HasPrefix(path, m.prefix))
}

// mappings is the table of everything behind authentication; what it does not
// hold is answered with 404. Paths are compared as the client escaped them.
var mappings = newMappings()

// newMappings makes the table, of what shards have and of what the front-proxy itself has.
func newMappings() []mapping {
	table := []mapping{
		{prefix: "/metrics", exact: true, serve: (*Server).serveMetrics},
		{prefix: serving.ProfilesPrefix, serve: (*Server).serveProfiles},
		{prefix: shardsPrefix, serve: (*Server).serveCluster},
	}
	for _, mount := range shardMounts {
		m := mapping{prefix: mount.Prefix, serve: (*Server).serveCluster}
		if mount.Whole {
			m.serve = (*Server).serveAdmin
		}
		table = append(table, m)
	}
	return table
}

// mappingOf returns what is mapped to an escaped path, which is nothing but 404 where the
// table does not hold it.
func mappingOf(path string) mapping {
	if at := slices.IndexFunc(mappings, func(m mapping) bool { return m.fits(path) }); at >= 0 {
		return mappings[at]
	}
	return mapping{serve: func(_ *Server, w http.ResponseWriter, r *http.Request) { notMapped.ServeHTTP(w, r) }}
}

// chain is what everything passes before serveMappings.
func (s *Server) chain() serving.Chain {
	return serving.Chain{
		serving.LongPaths(),
		serving.AnswerGuard(),
		serving.BodyGuard(s.bodies),
		serving.NewFilter("panic recovery", "500 for requests that crash", withPanicRecovery),
		serving.MaskTokens(),
		serving.NewFilter("accounting", "metrics, the log, and audit events of what is answered here", func(next http.Handler) http.Handler {
			return withAccounting(next, s.forwarder.metrics, &s.requests, s.audit)
		}),
		serving.NewFilter("probes", "/livez, /readyz and /healthz, for everybody", func(next http.Handler) http.Handler {
			return serving.WithReadinessWarnings(withProbes(next, s.liveness(), s.readiness()), s.shards.warnings)
		}),
		serving.NewFilter("stop", "connections close after the answer, of a server that is to stop", s.withStop),
		serving.NewFilter("token's cluster", "a service account's logical cluster, where the URL has none", authn.WithTokenCluster),
		serving.NewFilter("credentials", "headers about users go, from outside they count for nothing", func(next http.Handler) http.Handler {
			return withCredentials(next, s.identity, s.devTokens)
		}),
		serving.NewFilter("target", "the path is kept, for the issuers of the logical cluster in it", withTarget),
		serving.NewFilter("authentication", "who it is; 401", func(next http.Handler) http.Handler {
			return apifilters.WithAuthentication(next, s.authentication.Authenticator, unauthorized, s.authentication.Audiences, nil)
		}),
		serving.Connections(nil, tooMany),
		serving.NewFilter("limits", "429 above --limit requests-per-user and watches-per-user", s.withLimits),
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
func (s *Server) withLimits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		resource := s.inFlight
		if r.Header.Get("Upgrade") != "" || isWatch(r) {
			resource = s.watches
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

func (s *Server) serveMappings(w http.ResponseWriter, r *http.Request) {
	if who, ok := genericapirequest.UserFrom(r.Context()); ok {
		if rec := recordFrom(r.Context()); rec != nil {
			rec.who = who
		}
	}
	path := r.URL.EscapedPath()
	own := mappingOf(path)
	if to := s.mappedTo(path, own.prefix); to != nil {
		s.serveMapped(w, r, to)
		return
	}
	own.serve(s, w, r)
}

// serveCluster forwards a request for a logical cluster, or for what a view shows of one,
// to its shard.
func (s *Server) serveCluster(w http.ResponseWriter, r *http.Request) {
	to, ok := s.newRoute(w, r)
	if !ok {
		return
	}
	at, err := addressOf(r.URL.EscapedPath())
	if err != nil {
		writeStatus(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	to.rest = at.rest
	if refused := serving.BelowCluster(unescapedRest(to.rest)); refused != nil {
		writeStatus(w, refused) // whether it exists or not
		return
	}
	switch {
	case at.all && s.forwarder.administers(r.Context(), to.user):
		s.serveAll(w, r, to)
		return
	case !at.valid:
		writeStatus(w, forbidden(r, unescapedRest(to.rest)))
		return
	case at.path == request.Wildcard && at.shard == "" && s.shards.only() == nil:
		writeStatus(w, apierrors.NewBadRequest(wildcardOfViews))
		return
	}
	if !s.place(w, to, at) {
		return
	}
	defer func() { to.release() }()
	if s.resolve(w, r, to, at) {
		if to.mount != nil {
			defer to.mount.leave()
		}
		auditID := identified(r)
		if rec := recordFrom(r.Context()); rec != nil {
			rec.shard, rec.cluster, rec.auditID = to.backend.Name, to.cluster, auditID
		}
		s.forwarder.forward(w, r, to)
	}
}

// newRoute returns a route that leads nowhere yet, or answers and reports false.
func (s *Server) newRoute(w http.ResponseWriter, r *http.Request) (*route, bool) {
	who, ok := genericapirequest.UserFrom(r.Context())
	if !ok {
		unauthorized.ServeHTTP(w, r)
		return nil, false
	}
	if strings.ContainsFunc(r.Header.Get("Upgrade"), func(c rune) bool { return c < ' ' || c > '~' }) {
		writeStatus(w, apierrors.NewBadRequest("the Upgrade header does not name a protocol"))
		return nil, false
	}
	if refused := tooLarge(r, who); refused != nil {
		writeStatus(w, refused)
		return nil, false
	}
	to := &route{user: who, arrived: arrivalOf(r.Context()), upgrade: r.Header.Get("Upgrade") != "", release: func() {}}
	to.long = to.upgrade || isWatch(r)
	to.token = s.passedOn(r.Context(), who)
	return to, true
}

// place takes a place for to among those who may have to wait, if its user has not been
// there lately, or answers and reports false.
func (s *Server) place(w http.ResponseWriter, to *route, at address) bool {
	if s.visited(to, at) {
		return true
	}
	release, ok := s.forwarder.resolver.enter(identity.PayerOf("", to.user))
	if !ok {
		writeStatus(w, statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon,
			"too many requests of this user wait for workspaces that it has not entered yet, try again later"))
		return false
	}
	to.release = release
	return true
}

// wildcardOfViews is the answer to requests for all that a view shows, of several shards.
const wildcardOfViews = "each shard has a view of its own logical clusters: use the URLs of the shards, which are in status.endpoints of the " +
	"APIExportEndpointSlice, or in status.virtualWorkspaces of the WorkspaceType"

// visited reports whether the user has been lately where a request is to go.
func (s *Server) visited(to *route, at address) bool {
	look := s.forwarder.resolver.index.Lookup
	target, view, found := s.find(at, look)
	return found == workspaceindex.Found && s.forwarder.visitors.has(visitorOf(to.user, target.Cluster, view))
}

// find looks up what an address names: the logical cluster, and the path of the view
// through which it is to be seen.
func (s *Server) find(at address, look func(path string) (workspaceindex.Target, workspaceindex.Outcome)) (target workspaceindex.Target, view string, outcome workspaceindex.Outcome) {
	if at.view != nil {
		granting, outcome := look(at.view.granting)
		if !known(outcome) {
			return target, "", outcome
		}
		view = at.view.mount.ViewPath(granting.Cluster, at.view.object)
	}
	if at.path == request.Wildcard {
		switch {
		case at.shard == "":
		case s.shards.backend(at.shard) == nil:
			return target, view, workspaceindex.Unknown
		default:
			return workspaceindex.Target{Cluster: request.Wildcard, Shard: at.shard}, view, workspaceindex.Found
		}
		if only := s.shards.only(); only != nil {
			return workspaceindex.Target{Cluster: request.Wildcard, Shard: only.Name}, view, workspaceindex.Found
		}
		return target, view, workspaceindex.Unknown // another one has just come
	}
	target, outcome = look(at.path)
	return target, view, outcome
}

// resolve finds the shard of to, or answers and reports false. The user gets no
// further with a body, if it may not enter.
func (s *Server) resolve(w http.ResponseWriter, r *http.Request, to *route, at address) bool {
	target, view, outcome := s.find(at, func(path string) (workspaceindex.Target, workspaceindex.Outcome) { //nolint:contextcheck // it has that of the request
		return s.forwarder.resolver.resolve(r.Context(), path, to.arrived, to.user)
	})
	if outcome == workspaceindex.Mounted || outcome == workspaceindex.Unmounted {
		return s.resolveMount(w, r, to, at, target, outcome)
	}
	to.cluster, to.view, to.backend, to.visitor = target.Cluster.String(), view, s.shards.backend(target.Shard), visitorOf(to.user, target.Cluster, view)
	to.holder, to.isNew = to.backend, outcome == workspaceindex.Found && at.view == nil && isNew(target)
	switch {
	case !known(outcome):
		if at.shard != "" {
			s.forwarder.resolver.hold(r.Context(), to.arrived) // which was not waited for
		}
		s.unknown(w, r, to, target, outcome)
		return false
	case outcome == workspaceindex.Unavailable || to.backend == nil:
		s.unavailable(w, r, to, "the workspace is unavailable")
		return false
	case bodies.In(r) && s.forwarder.notEntered(r.Context(), to):
		s.forwarder.refuse(w, r, to)
		return false
	default:
		return true
	}
}

// unknown answers where there is no such logical cluster, as far as is known.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request, to *route, target workspaceindex.Target, outcome workspaceindex.Outcome) {
	if s.shards.complete() && expects(r.Context(), to.user, target, outcome) {
		writeStatus(w, unavailable("the workspace is not ready yet, try again"))
		return
	}
	writeStatus(w, s.forwarder.unknown(r, to))
}

// unavailable answers where a logical cluster is there and cannot be reached.
func (s *Server) unavailable(w http.ResponseWriter, r *http.Request, to *route, why string) {
	if s.forwarder.denied(r.Context(), to) {
		s.forwarder.refuse(w, r, to)
		return
	}
	writeStatus(w, unavailable("%s", why))
}

// arrivalOf returns when the request of ctx came: what was done for it since is part of
// every wait.
func arrivalOf(ctx context.Context) time.Time {
	if rec := recordFrom(ctx); rec != nil {
		return rec.received
	}
	return time.Now()
}

// identified returns the ID under which the shard audits the request. The shard
// would choose one itself; chosen here, it also stands in the front-proxy's own
// log, beside the path that the client wrote.
func identified(r *http.Request) string {
	id := r.Header.Get(auditinternal.HeaderAuditID)
	if id == "" {
		id = uuid.NewString()
		r.Header.Set(auditinternal.HeaderAuditID, id)
	}
	return id
}

// isWatch reports whether the answer to r is a stream that lasts: whether the
// shard takes r for a watch. Names may be words of the API, too.
func isWatch(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	// Most requests need not be taken apart.
	if !strings.Contains(r.URL.Path, "/watch/") && !strings.Contains(r.URL.RawQuery, "watch") && !strings.Contains(r.URL.RawQuery, "%") {
		return false
	}
	// Without the query, which anybody could fill the log with.
	bare := http.Request{Method: r.Method, URL: &url.URL{}}
	at, err := addressOf(r.URL.EscapedPath())
	if err != nil {
		return false
	}
	// Servers of the mapping file may have logical clusters anywhere in their paths.
	if _, below, found := strings.Cut(at.rest, request.Clusters.Prefix); found && !at.valid {
		_, at.rest = splitEscaped(below)
	}
	info, err := requestInfo(&bare, unescapedRest(at.rest))
	if err != nil || !info.IsResourceRequest {
		return false
	}
	switch info.Verb {
	case "watch":
		return true
	case "list":
		values := r.URL.Query()["watch"]
		return len(values) > 0 && !strings.EqualFold(values[0], "false") && values[0] != "0"
	default:
		return false
	}
}

// withProbes answers health probes of everybody.
func withProbes(next http.Handler, live, ready []healthz.HealthChecker) http.Handler {
	mux := http.NewServeMux()
	healthz.InstallPathHandler(mux, "/healthz", live...)
	healthz.InstallPathHandler(mux, "/livez", live...)
	healthz.InstallPathHandler(mux, "/readyz", ready...)
	open := authn.ProbePaths()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(open, r.URL.Path) {
			mux.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withStop has clients use another connection, and so another server, for their next request
// once this one is to stop: by HTTP/2, this is a GOAWAY.
func (s *Server) withStop(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.stopping.Load() && r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
		}
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
