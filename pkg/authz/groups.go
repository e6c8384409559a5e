package authz

import (
	"context"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// IsPrivilegedGroup reports whether a group has permissions that no logical cluster can grant.
func IsPrivilegedGroup(group string) bool {
	return group == user.SystemPrivilegedGroup || strings.HasPrefix(group, request.GroupPrefix)
}

// Privileged allows all requests of members of the groups, and has no opinion otherwise. A user who is
// restricted to logical clusters is a member in these only.
func Privileged(groups ...string) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if identity.MemberOf(ctx, a.GetUser(), groups...) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}

// OnProcess calls next for requests about the serving process, and has no opinion on requests for a logical
// cluster, whether or not it exists.
func OnProcess(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if _, nowhere := request.NowhereFrom(ctx); nowhere {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return WithoutCluster(next).Authorize(ctx, a)
	})
}

func onMetrics(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if path := a.GetPath(); a.IsResourceRequest() || path != "/metrics" && !strings.HasPrefix(path, "/metrics/") {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return next.Authorize(ctx, a)
	})
}

// WithoutCluster calls next for requests without a logical cluster: about the process itself, or on a path
// that does not exist.
func WithoutCluster(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if _, ok := request.ClusterFrom(ctx); ok {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return next.Authorize(ctx, a)
	})
}

// clusterName returns the logical cluster of ctx, or "".
func clusterName(ctx context.Context) logicalcluster.Name {
	cluster, _ := request.ClusterFrom(ctx)
	return cluster.Name
}

// Shards allows other shards to read all resources and discovery, to create SubjectAccessReviews, and to
// write Shards and Leases in root. Admission restricts these writes to their own objects. It has no opinion
// otherwise.
func Shards() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if _, ok := identity.ShardOf(ctx, a.GetUser()); ok && shardMay(ctx, a) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}

func shardMay(ctx context.Context, a authorizer.Attributes) bool {
	cluster, inCluster := request.ClusterFrom(ctx)
	if !a.IsResourceRequest() {
		discovery := strings.HasPrefix(a.GetPath(), "/api/") || strings.HasPrefix(a.GetPath(), "/apis/")
		return a.GetVerb() == "get" && inCluster && discovery
	}
	if Reads(a) {
		return true
	}
	resource := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	switch {
	case a.GetSubresource() != "":
		return false
	case resource == authorizationv1.Resource("subjectaccessreviews"):
		return a.GetVerb() == "create"
	case resource == corev1alpha1.Resource("shards"), resource == coordinationv1.Resource("leases"):
		return cluster.Name == core.RootCluster && (a.GetVerb() == "create" || a.GetVerb() == "update" || a.GetVerb() == "patch")
	default:
		return false
	}
}

// Reads reports whether a request reads a resource.
func Reads(a authorizer.Attributes) bool {
	return a.IsResourceRequest() && (a.GetVerb() == "get" || a.GetVerb() == "list" || a.GetVerb() == "watch")
}
