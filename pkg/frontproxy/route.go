package frontproxy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/featuregate"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
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
	process   *process
	features  featuregate.FeatureGate
	devTokens map[string]*user.DefaultInfo
	url       string
}

func (rt *router) send(w http.ResponseWriter, r *http.Request, c *call, cluster string, to target) {
	auditID := ensureAuditID(r)
	if rec := recordFrom(r.Context()); rec != nil {
		rec.shard, rec.cluster, rec.auditID = to.way().Name, cluster, auditID
	}
	rt.forwarder.forward(w, r, c, to)
}

// admit acquires a slot for a visit that may have to wait, unless its user was authorized recently.
// If there is none, it writes the response and returns false.
func (rt *router) admit(w http.ResponseWriter, v *visit, at address) bool {
	target, virtualWorkspace, found := rt.find(at, rt.resolver.index.Lookup)
	return found == workspaceindex.Found && rt.accessCache.has(accessKeyOf(v.user, target.Cluster, virtualWorkspace)) || v.take(w)
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
		switch {
		case at.shard == "":
		case rt.shards.backend(at.shard) == nil:
			return target, virtualWorkspace, workspaceindex.Unknown
		default:
			return workspaceindex.Target{Cluster: request.Wildcard, Shard: at.shard}, virtualWorkspace, workspaceindex.Found
		}
		if only := rt.shards.only(); only != nil {
			return workspaceindex.Target{Cluster: request.Wildcard, Shard: only.Name}, virtualWorkspace, workspaceindex.Found
		}
		return target, virtualWorkspace, workspaceindex.Unknown // a second shard has just been added
	}
	target, outcome = lookup(at.path)
	return target, virtualWorkspace, outcome
}

// resolve returns the target of a visit, or an error response. It follows mounts of workspaces of
// this installation. It does not read the request body before the user is authorized.
func (rt *router) resolve(r *http.Request, v *visit, at address) (target, *apierrors.StatusError) {
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
		case bodies.In(r) && v.notAuthorized(r.Context()):
			return nil, v.refusal(r)
		default:
			return &shardTarget{backend: shard, visit: v}, nil
		}
	}
}

// through resolves a mount. A URL of this installation refers to a workspace, which is served as if it had been
// requested directly, subject to its own authorization: next is its address. Any other server serves only users
// with access to the logical cluster that contains the mount, and remains hidden from all others.
func (rt *router) through(r *http.Request, v *visit, at address, mount workspaceindex.Target, outcome workspaceindex.Outcome, hops int) (next *address, to target, status *apierrors.StatusError) {
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
	*visit
}

// path contains the resolved name, so that the shard needs no lookup. The remaining path is not changed.
func (t *shardTarget) path(string) string {
	return t.visit.virtualWorkspace + request.ClusterPath(t.visit.cluster) + t.visit.rest
}

func (t *shardTarget) identify(p *httputil.ProxyRequest) {
	p.SetXForwarded()
	t.visit.identify(p.Out.Header)
}

func (t *shardTarget) accept(r *http.Request, res *http.Response) *apierrors.StatusError {
	if t.visit.conceals(r.Context(), res) {
		return t.visit.revoked(r)
	}
	return nil
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

type targetKey struct{}

// withTarget stores the request path for authentication, because the logical cluster may have its own issuers.
func withTarget(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, r.URL.EscapedPath())))
	})
}

func (rt *router) targetOf(path string) (string, bool) {
	if to := rt.mapped.of(path, mappingOf(path).prefix); to != nil {
		segment, _, malformed := to.clusterIn(path)
		if malformed || segment == "" {
			return "", false
		}
		return clusterPath(segment)
	}
	at, err := addressOf(path)
	return at.path, err == nil && at.valid && at.virtualWorkspace == nil
}

// workspaceIssuers returns the logical cluster of a request, and the issuers of its type. If the logical
// cluster is unknown, the lookup waits as long as for any user.
func (rt *router) workspaceIssuers(ctx context.Context) authn.Workspace {
	escaped, _ := ctx.Value(targetKey{}).(string)
	path, ok := rt.targetOf(escaped)
	if !ok {
		return authn.Workspace{}
	}
	resolver := rt.resolver
	target, outcome := resolver.index.Lookup(path)
	if !final(outcome) {
		release, ok := resolver.acquire(identity.Flow{}) // the user is not authenticated yet
		if !ok {
			return authn.Workspace{}
		}
		defer release()
		target, outcome = resolver.resolve(ctx, path, arrivalOf(ctx), &user.DefaultInfo{Name: user.Anonymous})
	}
	if !known(outcome) {
		return authn.Workspace{}
	}
	w := authn.Workspace{Cluster: target.Cluster}
	isNew := time.Since(time.Unix(target.Created, 0)) < authn.NewFor
	t, f, coming := rt.typeOf(target, isNew)
	if t == nil {
		w.Incomplete = coming
		return w
	}
	for _, ref := range t.Spec.AuthenticationConfigurations {
		c, err := f.configurations.Lister().Get(client.Key{Cluster: logicalcluster.From(t), Name: ref.Name})
		if err != nil {
			w.Incomplete = w.Incomplete || isNew || !f.configurations.HasSynced()
			continue
		}
		w.Name(c)
	}
	return w
}

// typeOf returns the type of a logical cluster, and the follower of the shard that contains it.
// coming is set if the type may appear later.
func (rt *router) typeOf(of workspaceindex.Target, isNew bool) (t *tenancyv1alpha1.WorkspaceType, f *follower, coming bool) {
	path, name := logicalcluster.NewPath(of.Type).Split()
	if name == "" {
		return nil, nil, false
	}
	at, outcome := rt.shards.index.Lookup(path.String())
	if !known(outcome) {
		return nil, nil, isNew
	}
	// The index may have been restored, and the shard not be followed yet.
	if f = rt.shards.follower(at.Shard); f == nil {
		return nil, nil, true
	}
	t, err := f.types.Lister().Get(client.Key{Cluster: at.Cluster, Name: tenancyv1alpha1.ObjectName(tenancyv1alpha1.WorkspaceTypeName(name))})
	return t, f, err != nil && (isNew || !f.types.HasSynced())
}

func (rt *router) reportIssuer(ctx context.Context, of *issuers.Configuration, fault string) error {
	cluster := logicalcluster.From(of)
	target, _ := rt.shards.index.Lookup(cluster.String())
	shard := rt.shards.book.Named(target.Shard)
	if shard == nil {
		return nil // the logical cluster was deleted
	}
	return events.Record(ctx, shard.Clients.Cluster(cluster.Path()), events.Event{
		About: issuers.Reference(of), Component: issuers.Component, Type: corev1.EventTypeWarning, Reason: issuers.Reason, Message: fault,
	}, fault)
}
