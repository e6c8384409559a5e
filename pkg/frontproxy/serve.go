package frontproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
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
	rec.shard, rec.cluster, rec.auditID = allShards, request.Wildcard, a.header.Get(auditinternal.HeaderAuditID)
	err = respond(ctx, w)
	rec.forwarded = a.responded.Load()
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

// headerForAll returns the header of requests to each shard, with the client's headers for impersonation and logs only.
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
		r, err := b.get(traced, request.ClusterPath(request.Wildcard)+a.call.rest, query.Encode())
		if err != nil {
			return nil, err
		}
		maps.Copy(r.Header, a.header)
		a.call.identify(r.Header, a.router.groups)
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
		context.AfterFunc(ctx, func() { b.Used(b.retire) }) // it ends after the response was read
		return res, nil
	}
}

// mappingOf returns the handler of an escaped path behind authentication, and its prefix, which is empty for 404.
func mappingOf(path string) (prefix string, serve func(rt *router, w http.ResponseWriter, r *http.Request)) {
	mount, _ := request.MountOf(path, shardMounts...)
	switch {
	case path == "/metrics":
		return path, (*router).serveMetrics
	case strings.HasPrefix(path, serving.ProfilesPrefix):
		return serving.ProfilesPrefix, (*router).serveProfiles
	case strings.HasPrefix(path, shardsPrefix):
		return shardsPrefix, (*router).serveCluster
	case mount == nil:
		return "", (*router).notMapped
	case mount.Whole:
		return mount.Prefix, (*router).serveAdmin
	default:
		return mount.Prefix, (*router).serveCluster
	}
}

func (*router) notMapped(w http.ResponseWriter, r *http.Request) {
	writeStatus(w, statusError(http.StatusNotFound, metav1.StatusReasonNotFound, 0,
		"the path %q is not served by the front-proxy: use /clusters/<path or name>/…", r.URL.Path))
}

func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recordFrom(r.Context()).userInfo, _ = genericapirequest.UserFrom(r.Context())
	path := r.URL.EscapedPath()
	prefix, serve := mappingOf(path)
	if to := rt.mapped.of(path, prefix); to != nil {
		rt.serveMapped(w, r, to)
		return
	}
	serve(rt, w, r)
}

// wildcardNotSupported is the message for wildcard requests to a virtual workspace if there are several shards.
const wildcardNotSupported = "each shard has virtual workspaces of its own logical clusters: use /shards/<name>/services/… for each shard. " +
	"If the shards have --virtual-workspace-url, these URLs are in status.endpoints of the endpoint slice and in status.virtualWorkspaces of the WorkspaceType"

func (rt *router) serveCluster(w http.ResponseWriter, r *http.Request) {
	c, ok := newCall(w, r, rt.devTokens)
	if !ok {
		return
	}
	path := recordFrom(r.Context()).path.of(r)
	if path.err != nil {
		writeStatus(w, apierrors.NewBadRequest(path.err.Error()))
		return
	}
	at := path.at
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
	v := rt.accessRequest(c)
	if refused := rt.admit(v, at); refused != nil {
		writeStatus(w, refused)
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

// serveMapped forwards a request to a server of the mapping file. If its path names a logical cluster, that must exist.
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
	v := rt.accessRequest(c)
	defer func() { v.release() }()
	if segment != "" && segment != request.Wildcard {
		if refused := rt.locate(r, v, segment); refused != nil {
			writeStatus(w, refused)
			return
		}
	}
	rec := recordFrom(r.Context())
	rec.ResponseWriter = responses.Stream(rec.ResponseWriter, r)
	rt.send(w, r, c, v.cluster, &mappedTarget{mappedServer: m, accessRequest: v})
}

// locate resolves the logical cluster of a path segment. It returns an error response if that does not exist.
func (rt *router) locate(r *http.Request, v *accessRequest, segment string) *apierrors.StatusError {
	path, ok := clusterPath(segment)
	if !ok {
		return forbidden(r, unescapedRest(v.rest))
	}
	if refused := rt.admit(v, address{path: path, valid: true, rest: v.rest}); refused != nil {
		return refused
	}
	target, outcome := rt.resolver.resolve(r.Context(), path, v.arrived, v.user)
	v.at(target, "", rt.shards.backend(target.Shard))
	v.isNew = isNew(target)
	switch {
	case outcome == workspaceindex.Mounted || outcome == workspaceindex.Unmounted:
		return v.refusal(r) // not a logical cluster
	case !known(outcome):
		return v.missing(r, target, outcome)
	case outcome == workspaceindex.Unavailable || v.shard == nil:
		return v.unavailable(r, "the workspace is unavailable")
	default:
		return nil
	}
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
	var first *backend
	var firstOrder string
	for name, to := range s.ways {
		// false is before true
		order := fmt.Sprint(to.Silent() || to.follower.failure() != nil, name != corev1alpha1.RootShard, name)
		if first == nil || order < firstOrder {
			first, firstOrder = to.backend, order
		}
	}
	return first
}
