package frontproxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/featuregate"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// maxHops is how many mounts lead to each other at most.
const maxHops = 3

// router finds the target of each call.
type router struct {
	*gate

	shards    *shards
	mounts    *mounts
	mapped    mappedServers
	forwarder *forwarder
	process   *process
	// features are those that are on.
	features featuregate.FeatureGate
	// devTokens are the tokens that are passed on to shards; there may be none.
	devTokens map[string]*user.DefaultInfo
	// url is where the front-proxy listens.
	url string
}

// send forwards a call to a target, and notes where it goes.
func (rt *router) send(w http.ResponseWriter, r *http.Request, c *call, cluster string, to target) {
	auditID := identified(r)
	if rec := recordFrom(r.Context()); rec != nil {
		rec.shard, rec.cluster, rec.auditID = to.way().Name, cluster, auditID
	}
	rt.forwarder.forward(w, r, c, to)
}

// admit takes a place for a visit among those who may have to wait, if its user has not been
// there lately, or answers and reports false.
func (rt *router) admit(w http.ResponseWriter, v *visit, at address) bool {
	target, view, found := rt.find(at, rt.resolver.index.Lookup)
	return found == workspaceindex.Found && rt.accessCache.has(accessKeyOf(v.user, target.Cluster, view)) || v.take(w)
}

// find looks up what an address names: the logical cluster, and the path of the view
// through which it is to be seen.
func (rt *router) find(at address, look func(path string) (workspaceindex.Target, workspaceindex.Outcome)) (target workspaceindex.Target, view string, outcome workspaceindex.Outcome) {
	if at.view != nil {
		granting, outcome := look(at.view.granting)
		if !known(outcome) {
			return target, "", outcome
		}
		view = at.view.mount.VirtualWorkspacePath(granting.Cluster, at.view.object)
	}
	if at.path == request.Wildcard {
		switch {
		case at.shard == "":
		case rt.shards.backend(at.shard) == nil:
			return target, view, workspaceindex.Unknown
		default:
			return workspaceindex.Target{Cluster: request.Wildcard, Shard: at.shard}, view, workspaceindex.Found
		}
		if only := rt.shards.only(); only != nil {
			return workspaceindex.Target{Cluster: request.Wildcard, Shard: only.Name}, view, workspaceindex.Found
		}
		return target, view, workspaceindex.Unknown // another one has just come
	}
	target, outcome = look(at.path)
	return target, view, outcome
}

// resolve finds the target of a visit, or the answer if there is none. It goes on where mounts of
// this installation lead. The user gets no further with a body, if it may not enter.
func (rt *router) resolve(r *http.Request, v *visit, at address) (target, *apierrors.StatusError) {
	for hops := 0; ; hops++ {
		target, view, outcome := rt.find(at, func(path string) (workspaceindex.Target, workspaceindex.Outcome) { //nolint:contextcheck // it has that of the request
			return rt.resolver.resolve(r.Context(), path, v.arrived, v.user)
		})
		holder := rt.shards.backend(target.Shard)
		if outcome == workspaceindex.Mounted || outcome == workspaceindex.Unmounted {
			v.at(target, "", holder)
			next, to, status := rt.through(r, v, at, target, outcome, hops)
			if next == nil {
				return to, status
			}
			at = *next
			continue
		}
		v.at(target, view, holder)
		v.isNew = outcome == workspaceindex.Found && at.view == nil && isNew(target)
		switch {
		case !known(outcome):
			if at.shard != "" {
				rt.resolver.hold(r.Context(), v.arrived) // which was not waited for
			}
			return nil, v.missing(r, target, outcome)
		case outcome == workspaceindex.Unavailable || holder == nil:
			return nil, v.unavailable(r, "the workspace is unavailable")
		case bodies.In(r) && v.notEntered(r.Context()):
			return nil, v.refusal(r)
		default:
			return &shardTarget{backend: holder, visit: v}, nil
		}
	}
}

// through returns where a mount leads, of which the index has told. A URL of this installation
// means a workspace, which is served as if it had been asked for, to whom it lets in: its address
// is next. Any other server is for those who may enter the logical cluster that has the mount,
// and told of nobody else.
func (rt *router) through(r *http.Request, v *visit, at address, mount workspaceindex.Target, outcome workspaceindex.Outcome, hops int) (next *address, to target, status *apierrors.StatusError) {
	u, err := url.Parse(mount.Mount)
	switch {
	case at.view != nil:
		return nil, nil, v.refusal(r) // there is nothing to be seen through a view
	case outcome == workspaceindex.Unmounted || err != nil:
		return nil, nil, v.unavailable(r, "the workspace is a mount that leads nowhere now: its conditions say why")
	}
	if !rt.features.Enabled(features.WorkspaceMounts) {
		return nil, nil, v.unavailable(r, "the workspace is a mount, and the feature gate WorkspaceMounts of the front-proxy is off")
	}
	segment, own := rt.workspaceAt(u)
	if !own {
		mounted, status := rt.mounts.enter(r, v, u, mount.Cluster)
		if status != nil {
			return nil, nil, status
		}
		return nil, mounted, nil
	}
	path, valid := clusterPath(segment)
	if !valid || hops >= maxHops {
		return nil, nil, v.unavailable(r, fmt.Sprintf("the workspace is a mount of no workspace of this installation, or of mounts that lead to each other more than %d times", maxHops))
	}
	return &address{path: path, valid: true, rest: at.rest}, nil, nil
}

// workspaceAt returns the segment of the workspace that a URL of this installation means, and
// whether it is such a URL.
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
