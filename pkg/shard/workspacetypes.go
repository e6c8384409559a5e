package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// typeTimeout is how long a Workspace waits for a type that is not known yet.
const typeTimeout = 500 * time.Millisecond

// workspaceTypes is what admission asks about the types of new Workspaces.
func (s *Server) workspaceTypes() workspacetype.Config {
	types := s.informers.Types()
	return workspacetype.Config{
		MayUse:  s.mayUse,
		Timeout: typeTimeout,
		Types: func(ctx context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
			lc, err := s.local.find(ctx, parent)
			if err != nil {
				return nil, err
			}
			if lc == nil {
				return nil, fmt.Errorf("logical cluster %q is not here", parent)
			}
			found, err := types.Find(ws, lc)
			if incomplete := s.informers.TypesComplete(); err != nil && incomplete != nil {
				return nil, incomplete // it may exist
			}
			return found, err
		},
	}
}

// mayUse reports whether the rules of a type's logical cluster let u use it. If
// that is on another shard and what is replicated does not say yes, the other
// shard is asked.
func (s *Server) mayUse(ctx context.Context, u user.Info, t *tenancyv1alpha1.WorkspaceType) (bool, error) {
	cluster := logicalcluster.From(t)
	decision, _, err := s.rules.Authorize(request.WithClusterName(ctx, cluster), authorizer.AttributesRecord{
		User: u, Verb: "use", ResourceRequest: true, Name: t.Name,
		APIGroup: tenancyv1alpha1.SchemeGroupVersion.Group, APIVersion: tenancyv1alpha1.SchemeGroupVersion.Version, Resource: "workspacetypes",
	})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	if s.local.has(cluster) {
		return false, err
	}
	shard := s.sources.Root
	if name := t.Annotations[request.ShardAnnotation]; name != "" {
		peer := s.peers.Named(name)
		if peer == nil {
			return false, fmt.Errorf("shard %q is not known", name)
		}
		shard = peer.Clients
	}
	if shard == nil {
		return false, nil
	}
	return reviewUse(ctx, shard.Cluster(cluster.Path()), u, t.Name)
}

// reviewUse asks the shard of a type whether u may use it.
func reviewUse(ctx context.Context, scope client.Scope, u user.Info, name string) (bool, error) {
	config := scope.Config()
	config.GroupVersion = &authorizationv1.SchemeGroupVersion
	config.APIPath, config.NegotiatedSerializer = "/apis", client.Codecs.WithoutConversion()
	c, err := rest.RESTClientForConfigAndClient(config, scope.HTTPClient())
	if err != nil {
		return false, err
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "use", Resource: "workspacetypes", Name: name,
			Group: tenancyv1alpha1.SchemeGroupVersion.Group, Version: tenancyv1alpha1.SchemeGroupVersion.Version,
		},
	}}
	for key, values := range u.GetExtra() {
		review.Spec.Extra[key] = values
	}
	err = c.Post().Resource("subjectaccessreviews").SetHeader(authz.DeepReviewHeader, "true").Body(review).Do(ctx).Into(review)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return false, nil // the logical cluster has gone
	}
	return review.Status.Allowed, err
}
