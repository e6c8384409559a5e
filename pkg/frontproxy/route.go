package frontproxy

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

//reference:limit request | mounts of this installation that lead to each other | 503
const maxHops = 3

type router struct {
	*gate

	shards    *shards
	mounts    *mounts
	mapped    mappedServers
	forwarder *forwarder
	// metrics serves the metrics of this process. readers caches which users may read them.
	metrics   http.Handler
	readers   *authz.ReviewCache
	features  features.Gates
	devTokens map[string]*user.DefaultInfo
	url       string
}

func (rt *router) send(w http.ResponseWriter, r *http.Request, c *call, cluster string, to target) {
	auditID := ensureAuditID(r)
	rec := recordFrom(r.Context())
	rec.shard, rec.cluster, rec.auditID = to.way().Name, cluster, auditID
	rt.forwarder.forward(w, r, c, to)
}

// admit acquires a slot unless the user was authorized recently. It returns an error response if there is none.
func (rt *router) admit(v *accessRequest, at address) *apierrors.StatusError {
	target, virtualWorkspace, found := rt.find(at, rt.resolver.index.Lookup)
	if found == workspaceindex.Found && rt.accessCache.has(accessKeyOf(v.user, target.Cluster, virtualWorkspace)) {
		return nil
	}
	return v.take()
}

// find looks up the logical cluster and the path of the virtual workspace that an address specifies.
func (rt *router) find(at address, lookup func(path string) (workspaceindex.Target, workspaceindex.Outcome)) (target workspaceindex.Target, virtualWorkspace string, outcome workspaceindex.Outcome) {
	if at.virtualWorkspace != nil {
		granting, outcome := lookup(at.virtualWorkspace.granting)
		if !known(outcome) {
			return target, "", outcome
		}
		virtualWorkspace = at.virtualWorkspace.mount.VirtualWorkspacePath(granting.Cluster, at.virtualWorkspace.object)
	}
	if at.path == request.Wildcard {
		shard := rt.shards.only()
		if at.shard != "" {
			shard = rt.shards.backend(at.shard)
		}
		if shard == nil { // e.g. because a second shard has just been added
			return target, virtualWorkspace, workspaceindex.Unknown
		}
		return workspaceindex.Target{Cluster: request.Wildcard, Shard: shard.Name}, virtualWorkspace, workspaceindex.Found
	}
	target, outcome = lookup(at.path)
	return target, virtualWorkspace, outcome
}

// resolve returns the target of a request, or an error response. It follows mounts of workspaces of
// this installation. It does not read the request body before the user is authorized.
func (rt *router) resolve(r *http.Request, v *accessRequest, at address) (target, *apierrors.StatusError) {
	for hops := 0; ; hops++ {
		target, virtualWorkspace, outcome := rt.find(at, func(path string) (workspaceindex.Target, workspaceindex.Outcome) { //nolint:contextcheck // it has that of the request
			return rt.resolver.resolve(r.Context(), path, v.arrived, v.user)
		})
		shard := rt.shards.backend(target.Shard)
		if outcome == workspaceindex.Mounted || outcome == workspaceindex.Unmounted {
			v.at(target, "", shard)
			next, to, status := rt.through(r, v, at, target, outcome, hops)
			if next == nil {
				return to, status
			}
			at = *next
			continue
		}
		v.at(target, virtualWorkspace, shard)
		v.isNew = outcome == workspaceindex.Found && at.virtualWorkspace == nil && isNew(target)
		switch {
		case !known(outcome):
			if at.shard != "" {
				rt.resolver.delayDenial(r.Context(), v.arrived) // the lookup did not wait
			}
			return nil, v.missing(r, target, outcome)
		case outcome == workspaceindex.Unavailable || shard == nil:
			return nil, v.unavailable(r, "the workspace is unavailable")
		case bodies.In(r):
			if refused := v.concealUnlessCached(r); refused != nil {
				return nil, refused
			}
		}
		return &shardTarget{backend: shard, accessRequest: v}, nil
	}
}

// through resolves a mount. A URL of this installation refers to a workspace, which is authorized and served as
// if it had been requested directly. next is its address. Any other server serves only users with access to the
// logical cluster that contains the mount, and remains hidden from all others.
func (rt *router) through(r *http.Request, v *accessRequest, at address, mount workspaceindex.Target, outcome workspaceindex.Outcome, hops int) (next *address, to target, status *apierrors.StatusError) {
	u, err := url.Parse(mount.Mount)
	switch {
	case at.virtualWorkspace != nil:
		return nil, nil, v.refusal(r) // mounts are not visible through virtual workspaces
	case outcome == workspaceindex.Unmounted || err != nil:
		return nil, nil, v.unavailable(r, "the mount of the workspace is not available: see its conditions")
	}
	if !rt.features.Enabled(features.WorkspaceMounts) {
		return nil, nil, v.unavailable(r, "the workspace is a mount, and the feature gate WorkspaceMounts is disabled in the front-proxy")
	}
	segment, own := rt.workspaceAt(u)
	if !own {
		mounted, status := rt.mounts.admit(r, v, u, mount.Cluster)
		if status != nil {
			return nil, nil, status
		}
		return nil, mounted, nil
	}
	path, valid := clusterPath(segment)
	if !valid || hops >= maxHops {
		return nil, nil, v.unavailable(r, fmt.Sprintf("the mount refers to a workspace that does not exist, or to a chain of more than %d mounts", maxHops))
	}
	return &address{path: path, valid: true, rest: at.rest}, nil, nil
}

// workspaceAt returns the path segment of the workspace if u is a URL of this installation.
func (rt *router) workspaceAt(u *url.URL) (segment string, own bool) {
	is := func(address string) bool {
		at, err := url.Parse(address)
		return err == nil && at.Host != "" && withPort(at.Host) == withPort(u.Host)
	}
	if !is(rt.url) && !slices.ContainsFunc(rt.shards.objects.Lister().List(nil), func(shard *corev1alpha1.Shard) bool {
		return is(shard.Spec.ExternalURL) || is(shard.Spec.BaseURL) || is(shard.Spec.VirtualWorkspaceURL)
	}) {
		return "", false
	}
	segment, _ = strings.CutPrefix(strings.TrimSuffix(u.EscapedPath(), "/"), request.Clusters.Prefix)
	return segment, true
}

type shardTarget struct {
	*backend
	*accessRequest
}

// path contains the resolved name, so that the shard needs no lookup. The remaining path is not changed.
func (t *shardTarget) path(string) string {
	return t.accessRequest.virtualWorkspace + request.ClusterPath(t.accessRequest.cluster) + t.accessRequest.rest
}

func (t *shardTarget) identify(p *httputil.ProxyRequest) {
	p.SetXForwarded()
	t.accessRequest.identify(p.Out.Header)
}

func (t *shardTarget) String() string { return "the workspace's shard" }

type adminTarget struct {
	*backend
	call   *call
	groups authn.GroupFilter
}

func (t *adminTarget) path(escaped string) string { return escaped }

func (t *adminTarget) identify(p *httputil.ProxyRequest) {
	p.SetXForwarded()
	t.call.identify(p.Out.Header, t.groups)
}

func (t *adminTarget) accept(_ *http.Request, res *http.Response) *apierrors.StatusError {
	takeAccessHeader(res.Header)
	return nil
}

func (t *adminTarget) lost(*http.Request, error) *apierrors.StatusError { return nil }
func (t *adminTarget) String() string                                   { return "the shard" }
