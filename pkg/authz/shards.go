package authz

import (
	"context"
	"strings"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Shards lets other shards read everything, and which resources there are, ask what users may do, and write in root the kinds
// by which they are known there; admission sees to it that these objects are their own. It has
// no opinion on the rest, and on anybody else.
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

// Reads reports whether a request for a resource reads it, and nothing else.
func Reads(a authorizer.Attributes) bool {
	return a.IsResourceRequest() && (a.GetVerb() == "get" || a.GetVerb() == "list" || a.GetVerb() == "watch")
}
