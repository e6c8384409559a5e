package frontproxy

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/answers"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// mapping says what serves the paths that start with prefix, or, if exact, that
// are equal to it. The first mapping that fits serves.
type mapping struct {
	prefix string
	exact  bool
	serve  func(rt *router, w http.ResponseWriter, r *http.Request)
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
	return table
}

// mappingOf returns what is mapped to an escaped path, which is nothing but 404 where the
// table does not hold it.
func mappingOf(path string) mapping {
	if at := slices.IndexFunc(mappings, func(m mapping) bool { return m.fits(path) }); at >= 0 {
		return mappings[at]
	}
	return mapping{serve: func(_ *router, w http.ResponseWriter, r *http.Request) { notMapped.ServeHTTP(w, r) }}
}

// ServeHTTP implements http.Handler.
func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rec := recordFrom(r.Context()); rec != nil {
		rec.who, _ = genericapirequest.UserFrom(r.Context())
	}
	path := r.URL.EscapedPath()
	own := mappingOf(path)
	if to := rt.mapped.of(path, own.prefix); to != nil {
		rt.serveMapped(w, r, to)
		return
	}
	own.serve(rt, w, r)
}

// wildcardOfViews is the response to wildcard requests in virtual workspaces of several shards.
const wildcardOfViews = "each shard has virtual workspaces of its own logical clusters: use /shards/<name>/services/… for each shard. " +
	"If the shards have --virtual-workspace-url, these URLs are in status.endpoints of the endpoint slice and in status.virtualWorkspaces of the WorkspaceType"

// serveCluster forwards a request for a logical cluster, or for what a view shows of one,
// to its shard.
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
		writeStatus(w, refused) // whether it exists or not
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
		writeStatus(w, apierrors.NewBadRequest(wildcardOfViews))
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

// serveMapped forwards a request to a server of the mapping file, if the logical cluster
// that its path names, if any, exists.
func (rt *router) serveMapped(w http.ResponseWriter, r *http.Request, m *mappedServer) {
	c, ok := newCall(w, r, rt.devTokens)
	if !ok {
		return
	}
	segment, rest, malformed := m.clusterIn(r.URL.EscapedPath())
	if malformed {
		writeStatus(w, apierrors.NewBadRequest("the path may lead elsewhere than it seems to: it has segments of dots, or escaped slashes around \"clusters\""))
		return
	}
	c.token, c.rest = "", rest
	v := rt.visit(c)
	defer func() { v.release() }()
	if segment != "" && segment != request.Wildcard && !rt.exists(w, r, v, segment) {
		return
	}
	if rec := recordFrom(r.Context()); rec != nil {
		// The server knows how long its answers take.
		rec.ResponseWriter = answers.Stream(rec.ResponseWriter, r)
	}
	rt.send(w, r, c, v.cluster, &mappedTarget{mappedServer: m, visit: v})
}

// exists reports whether there is the logical cluster that a segment names, or answers.
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
		writeStatus(w, v.refusal(r)) // it is no logical cluster
	case !known(outcome):
		writeStatus(w, v.missing(r, target, outcome))
	case outcome == workspaceindex.Unavailable || v.holder == nil:
		writeStatus(w, v.unavailable(r, "the workspace is unavailable"))
	default:
		return true
	}
	return false
}
