package frontproxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/merge"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/serving/responses"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// allShards is the shard of merged requests in metrics and logs.
const allShards = request.Wildcard

func (rt *router) serveAll(w http.ResponseWriter, r *http.Request, c *call) {
	rest := unescapedRest(c.rest)
	info, err := requestInfo(r, rest)
	if err == nil {
		err = serving.CheckWildcard(request.Scope{Mount: request.Clusters, Cluster: request.Cluster{Wildcard: true}}, info)
	}
	accept, ok := merge.Accept(r.Header.Get("Accept"))
	switch {
	case err != nil:
		writeError(w, err)
		return
	case !ok:
		writeStatus(w, statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, 0, "requests to all shards support only JSON: accept application/json"))
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeStatus(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	a := &allShardsRequest{router: rt, call: c, header: headerForAll(r, accept), long: info.Verb == "watch"}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if a.long {
		defer context.AfterFunc(rt.forwarder.draining, cancel)() //nolint:contextcheck // the end of the server ends the request, nothing more
	}
	merged := merge.Request{Path: rest, Query: query, Tables: merge.AcceptsTables(accept), Hidden: request.IsSystem, Partial: r.Header.Get(merge.PartialHeader) == merge.PartialAllow, Shards: a.all}
	respond := merged.List
	if a.long {
		respond = merged.Watch
	}
	rec := recordFrom(r.Context())
	if rec != nil {
		rec.shard, rec.cluster, rec.auditID = allShards, request.Wildcard, a.header.Get(auditinternal.HeaderAuditID)
	}
	err = respond(ctx, w)
	if rec != nil {
		rec.forwarded = a.responded.Load()
	}
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		w.WriteHeader(statusClientClosed)
	default:
		writeError(w, err)
	}
}

func writeError(w http.ResponseWriter, err error) {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	writeStatus(w, status)
}

// headerForAll returns the header of requests to each shard: of the client's headers, only those for
// impersonation and logs.
func headerForAll(r *http.Request, accept string) http.Header {
	auditID := ensureAuditID(r)
	header := http.Header{}
	for name, values := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") || slices.Contains([]string{"User-Agent", "Traceparent", "Tracestate"}, name) {
			header[name] = slices.Clone(values)
		}
	}
	ownIdentity.drop(header)
	if client, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		header.Set("X-Forwarded-For", client)
	}
	header.Set("Accept", accept)
	header.Set(auditinternal.HeaderAuditID, auditID)
	header.Set(request.MergedHeader, "true")
	return header
}

type allShardsRequest struct {
	router    *router
	call      *call
	header    http.Header
	long      bool
	responded atomic.Bool
}

func (a *allShardsRequest) all() ([]merge.Shard, error) {
	if !a.router.shards.objects.HasSynced() {
		return nil, unavailable("the list of shards is not available yet")
	}
	var all []merge.Shard
	for _, obj := range a.router.shards.objects.Lister().List(nil) {
		all = append(all, merge.Shard{Name: obj.Name, Number: merge.NumberOf(string(obj.UID)), Get: a.get(obj)}) //nolint:bodyclose // the caller closes it
	}
	return all, nil
}

var errUnreachable = errors.New("unreachable")

func (a *allShardsRequest) get(obj *corev1alpha1.Shard) func(context.Context, url.Values) (*http.Response, error) {
	return func(ctx context.Context, query url.Values) (*http.Response, error) {
		b := a.router.shards.backend(obj.Name)
		if b == nil || !b.Allow() {
			return nil, errUnreachable
		}
		defer b.Done()
		traced, attempt := newAttempt(ctx, b.Peer, b.external)
		r, err := a.request(traced, b, query)
		if err != nil {
			return nil, err
		}
		transport := b.multiplexed
		if a.long {
			transport = b.parts
		}
		res, err := transport.RoundTrip(r)
		if err != nil {
			attempt.failed(ctx, err)
			a.router.forwarder.metrics.upstreamErrors.WithLabelValues(b.Name, "unreachable").Inc()
			b.Used(b.retire)
			// Addresses of shards must not be disclosed.
			return nil, errUnreachable
		}
		a.responded.Store(true)
		res.Body = &usedBody{ReadCloser: res.Body, used: sync.OnceFunc(func() { b.Used(b.retire) })}
		return res, nil
	}
}

func (a *allShardsRequest) request(ctx context.Context, b *backend, query url.Values) (*http.Request, error) {
	escaped := b.prefix + request.ClusterPath(request.Wildcard) + a.call.rest
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = path, escaped, query.Encode()
	maps.Copy(r.Header, a.header)
	a.call.identify(r.Header, a.router.groups)
	return r, nil
}

type usedBody struct {
	io.ReadCloser
	used func()
}

func (b *usedBody) Close() error {
	err := b.ReadCloser.Close()
	b.used()
	return err
}

// mapping is the handler of all paths that start with prefix or, if exact is set, are equal to it.
// The first mapping that fits serves a request.
type mapping struct {
	prefix string
	exact  bool
	serve  func(rt *router, w http.ResponseWriter, r *http.Request)
}

func (m *mapping) fits(path string) bool {
	return path == m.prefix || (!m.exact && strings.HasPrefix(path, m.prefix))
}

// mappings contains everything behind authentication. Paths are compared in escaped form.
var mappings = newMappings()

func newMappings() []mapping {
	table := []mapping{
		{prefix: "/metrics", exact: true, serve: func(rt *router, w http.ResponseWriter, r *http.Request) { rt.process.serveMetrics(w, r) }},
		{prefix: serving.ProfilesPrefix, serve: func(_ *router, w http.ResponseWriter, r *http.Request) { serveProfiles(w, r) }},
		{prefix: shardsPrefix, serve: (*router).serveCluster},
	}
	for _, mount := range shardMounts {
		m := mapping{prefix: mount.Prefix, serve: (*router).serveCluster}
		if mount.Whole {
			m.serve = (*router).serveAdmin
		}
		table = append(table, m)
	}
	return append(table, mapping{serve: notMapped})
}

func notMapped(_ *router, w http.ResponseWriter, r *http.Request) {
	writeStatus(w, statusError(http.StatusNotFound, metav1.StatusReasonNotFound, 0,
		"the path %q is not served by the front-proxy: use /clusters/<path or name>/…", r.URL.Path))
}

// mappingOf returns the mapping of an escaped path. The last one fits every path and returns 404.
func mappingOf(path string) mapping {
	return mappings[slices.IndexFunc(mappings, func(m mapping) bool { return m.fits(path) })]
}

func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rec := recordFrom(r.Context()); rec != nil {
		rec.userInfo, _ = genericapirequest.UserFrom(r.Context())
	}
	path := r.URL.EscapedPath()
	own := mappingOf(path)
	if to := rt.mapped.of(path, own.prefix); to != nil {
		rt.serveMapped(w, r, to)
		return
	}
	own.serve(rt, w, r)
}

// wildcardNotSupported is the message for wildcard requests to a virtual workspace if there are several shards.
const wildcardNotSupported = "each shard has virtual workspaces of its own logical clusters: use /shards/<name>/services/… for each shard. " +
	"If the shards have --virtual-workspace-url, these URLs are in status.endpoints of the endpoint slice and in status.virtualWorkspaces of the WorkspaceType"

func (rt *router) serveCluster(w http.ResponseWriter, r *http.Request) {
	c, ok := newCall(w, r, rt.devTokens)
	if !ok {
		return
	}
	at, err := addressOf(r.URL.EscapedPath())
	if err != nil {
		writeStatus(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	c.rest = at.rest
	if refused := serving.BelowCluster(unescapedRest(c.rest)); refused != nil {
		writeStatus(w, refused) // regardless of whether the logical cluster exists
		return
	}
	switch {
	case at.all && rt.features.Enabled(features.AllShards) && rt.administers(r.Context(), c.user):
		rt.serveAll(w, r, c)
		return
	case !at.valid:
		writeStatus(w, forbidden(r, unescapedRest(c.rest)))
		return
	case at.path == request.Wildcard && at.shard == "" && rt.shards.only() == nil:
		writeStatus(w, apierrors.NewBadRequest(wildcardNotSupported))
		return
	}
	v := rt.visit(c)
	if !rt.admit(w, v, at) {
		return
	}
	defer func() { v.release() }()
	to, status := rt.resolve(r, v, at)
	if status != nil {
		writeStatus(w, status)
		return
	}
	if mounted, ok := to.(*mountTarget); ok {
		defer mounted.leave()
	}
	rt.send(w, r, c, v.cluster, to)
}

// serveMapped forwards a request to a server of the mapping file. If its path names a logical
// cluster, that must exist.
func (rt *router) serveMapped(w http.ResponseWriter, r *http.Request, m *mappedServer) {
	c, ok := newCall(w, r, rt.devTokens)
	if !ok {
		return
	}
	segment, rest, malformed := m.clusterIn(r.URL.EscapedPath())
	if malformed {
		writeStatus(w, apierrors.NewBadRequest("the path is ambiguous: it has dot segments, or escaped slashes around \"clusters\""))
		return
	}
	c.token, c.rest = "", rest
	v := rt.visit(c)
	defer func() { v.release() }()
	if segment != "" && segment != request.Wildcard && !rt.exists(w, r, v, segment) {
		return
	}
	if rec := recordFrom(r.Context()); rec != nil {
		rec.ResponseWriter = responses.Stream(rec.ResponseWriter, r)
	}
	rt.send(w, r, c, v.cluster, &mappedTarget{mappedServer: m, visit: v})
}

// exists reports whether the logical cluster of a path segment exists. If not, it writes the response.
func (rt *router) exists(w http.ResponseWriter, r *http.Request, v *visit, segment string) bool {
	path, ok := clusterPath(segment)
	if !ok {
		writeStatus(w, forbidden(r, unescapedRest(v.rest)))
		return false
	}
	if !rt.admit(w, v, address{path: path, valid: true, rest: v.rest}) {
		return false
	}
	target, outcome := rt.resolver.resolve(r.Context(), path, v.arrived, v.user)
	v.at(target, "", rt.shards.backend(target.Shard))
	v.isNew = isNew(target)
	switch {
	case outcome == workspaceindex.Mounted || outcome == workspaceindex.Unmounted:
		writeStatus(w, v.refusal(r)) // not a logical cluster
	case !known(outcome):
		writeStatus(w, v.missing(r, target, outcome))
	case outcome == workspaceindex.Unavailable || v.shard == nil:
		writeStatus(w, v.unavailable(r, "the workspace is unavailable"))
	default:
		return true
	}
	return false
}

// serveAdmin forwards a request for resources of the installation to a shard. Only administrators may use it.
func (rt *router) serveAdmin(w http.ResponseWriter, r *http.Request) {
	c, ok := newCall(w, r, rt.devTokens)
	if !ok {
		return
	}
	c.rest = strings.TrimPrefix(r.URL.EscapedPath(), request.AdminPath)
	if !rt.administers(r.Context(), c.user) {
		writeStatus(w, forbidden(r, unescapedRest(c.rest)))
		return
	}
	shard := rt.shards.any()
	if shard == nil {
		writeStatus(w, unavailable("the list of shards is not available yet"))
		return
	}
	rt.send(w, r, c, "", &adminTarget{backend: shard, call: c, groups: rt.groups})
}

// any returns the connection to root or, while root is unreachable, to the first other shard by name, or nil. Since
// resource versions are only valid on one shard, it changes as rarely as possible.
func (s *shards) any() *backend {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var first way
	for _, to := range s.ways {
		if first.backend == nil || to.before(first) {
			first = to
		}
	}
	return first.backend
}

func (to way) before(other way) bool {
	if responsive := to.responsive(); responsive != other.responsive() {
		return responsive
	}
	if root := to.Name == corev1alpha1.RootShard; root || other.Name == corev1alpha1.RootShard {
		return root
	}
	return to.Name < other.Name
}

func (to way) responsive() bool { return !to.Silent() && to.follower.failure() == nil }
