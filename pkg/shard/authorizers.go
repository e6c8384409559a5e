package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	reviewTimeout = 5 * time.Second
	// deniedFor is the time for which a denial of another shard is cached.
	deniedFor = 5 * time.Second
)

// reviews authorizes in logical clusters of any shard, by the local and replicated rules. If these do not allow a
// request, it sends a SubjectAccessReview to the other shard.
type reviews struct {
	rules authorizer.Authorizer
	local func(cluster logicalcluster.Name) bool
	peers *peers.Book
	cache *authz.ReviewCache
}

func newReviews(rules authorizer.Authorizer, local func(logicalcluster.Name) bool, shards *peers.Book) *reviews {
	return &reviews{rules: rules, local: local, peers: shards, cache: authz.NewReviewCache(0, deniedFor)}
}

type accessReview struct {
	cluster logicalcluster.Name
	// shard is the name of the shard of the logical cluster, if it is known.
	shard    string
	verb     string
	resource schema.GroupVersionResource
	name     string
	// path is set instead of resource and name for requests without a resource.
	path string
}

// may returns false if the rules do not allow it and the shard of the logical cluster is not known.
func (r *reviews) may(ctx context.Context, u user.Info, q accessReview) (bool, error) {
	decision, _, err := r.rules.Authorize(request.WithClusterName(ctx, q.cluster), q.attributes(u))
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	if q.shard == "" || err != nil || r.local(q.cluster) {
		return false, err
	}
	peer := r.peers.Named(q.shard)
	if peer == nil {
		return false, fmt.Errorf("%w: shard %q is not known", peers.ErrUnreachable, q.shard)
	}
	return r.remote(ctx, peer, u, q)
}

func (r *reviews) remote(ctx context.Context, peer *peers.Peer, u user.Info, q accessReview) (bool, error) {
	review := q.review(u)
	return r.cache.May(ctx, peer.Name+"|"+q.cluster.String(), review, func(ctx context.Context) (allowed bool, err error) {
		err = peer.Do(ctx, reviewTimeout, func(ctx context.Context) error {
			allowed, err = authz.RequestDeepReview(ctx, peer.Clients.Cluster(q.cluster.Path()), review)
			return err
		})
		return allowed, err
	})
}

func (q *accessReview) attributes(u user.Info) authorizer.AttributesRecord {
	if q.path != "" {
		return authorizer.AttributesRecord{User: u, Verb: q.verb, Path: q.path}
	}
	return authorizer.AttributesRecord{
		User: u, Verb: q.verb, ResourceRequest: true, Name: q.name,
		APIGroup: q.resource.Group, APIVersion: q.resource.Version, Resource: q.resource.Resource,
	}
}

func (q *accessReview) review(u user.Info) *authorizationv1.SubjectAccessReview {
	review := authz.ReviewOf(u)
	if q.path != "" {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: q.verb, Path: q.path}
		return review
	}
	review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Verb: q.verb, Group: q.resource.Group, Version: q.resource.Version, Resource: q.resource.Resource, Name: q.name,
	}
	return review
}

// virtualWorkspace is a type of virtual workspace.
type virtualWorkspace interface {
	// Needs returns the attributes that the user of the virtual workspace must be allowed in the logical cluster that
	// grants it, or an error while they are unknown.
	Needs(ctx context.Context, a authorizer.Attributes) (authorizer.Attributes, error)
	Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	Shows(ctx context.Context) bool
	// Serve serves a request, usually by next in the logical clusters of the objects, or else returns an error.
	Serve(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo, next http.Handler) error
}

// virtualWorkspaces implements authz.VirtualWorkspaces for all types of virtual workspaces.
type virtualWorkspaces struct {
	kinds      map[*request.Mount]virtualWorkspace
	local      func(name logicalcluster.Name) bool
	rules      authorizer.Authorizer
	findRemote authz.FindLogicalCluster
}

func (v virtualWorkspaces) of(ctx context.Context) virtualWorkspace {
	return v.kinds[request.ScopeFrom(ctx).Mount]
}

// Opens authorizes in the logical cluster that grants the virtual workspace. If that is on another shard, only the
// replicated rules and its required groups are evaluated. The response time of a review there would disclose the
// logical cluster.
func (v virtualWorkspaces) Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error) {
	needs, err := v.of(ctx).Needs(ctx, a)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	granting, _ := request.ClusterFrom(ctx)
	if granting.Name == "" || v.local(granting.Name) || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup) {
		return next.Authorize(ctx, needs)
	}
	decision, _, err := authz.WithRequiredGroups(v.rules, v.findRemote).Authorize(ctx, needs)
	if decision != authorizer.DecisionAllow {
		return authorizer.DecisionNoOpinion, authz.NotPermittedReason, err
	}
	return decision, "", nil
}

func (v virtualWorkspaces) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return v.of(ctx).Permits(ctx, a)
}

func (v virtualWorkspaces) Shows(ctx context.Context) bool { return v.of(ctx).Shows(ctx) }

func (v virtualWorkspaces) wrap(next http.Handler) http.Handler {
	for _, mount := range request.VirtualWorkspaceMounts() {
		if v.kinds[mount] == nil {
			panic("shard: no type of virtual workspace for " + mount.Prefix)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.ScopeFrom(r.Context()).VirtualWorkspace == nil {
			next.ServeHTTP(w, r)
			return
		}
		err := errors.New("no request info in the context")
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok {
			err = authz.Unavailable(v.of(r.Context()).Serve(w, r, info, next))
		}
		if err == nil {
			return
		}
		if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
			err = apierrors.NewInternalError(err)
		}
		responsewriters.ErrorNegotiated(err, registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
	})
}
