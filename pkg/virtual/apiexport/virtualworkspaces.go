// Package apiexport serves the virtual workspaces of APIExports. They contain, as one API root, the objects to which the
// consumers on a shard give the provider access:
//
//	/services/apiexport/<provider>/<export>/clusters/{*,<consumer>}/…
//
// A request is first authorized, and subject to limits, as a request to the provider's logical cluster. Serve then
// redirects it to the consumer's logical cluster, or to all, restricted to the objects that bindings give access to.
//
//	own resources       the objects of the export's identity; with virtual storage, the replicas, read-only
//	claimed resources   the objects in a claims.Set, which follows the bindings
//	apibindings         those to the export, or those that an accepted claim selects
package apiexport

import (
	"context"
	"fmt"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// VirtualWorkspaces serves the virtual workspaces of all exports that have consumers on the shard.
type VirtualWorkspaces struct {
	Bindings *bindings.Index
	// Rules evaluates the loaded roles and bindings, for maximal permission policies.
	Rules authorizer.Authorizer
	// Inactive reports whether a logical cluster is marked inactive.
	Inactive func(name logicalcluster.Name) bool
	// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
}

// Needs returns the permission that is required for access: the request's verb on apiexports/content, also for discovery.
func (*VirtualWorkspaces) Needs(ctx context.Context, a authorizer.Attributes) (authorizer.Attributes, error) {
	gv := apisv1alpha2.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: a.GetVerb(), ResourceRequest: true,
		APIGroup: gv.Group, APIVersion: gv.Version, Resource: "apiexports", Subresource: "content", Name: request.VirtualWorkspaceFrom(ctx).Name,
	}, nil
}

// Permits implements authz.VirtualWorkspaces: in one logical cluster, a binding must give the export access. Claimed
// objects are also subject to the maximal permission policies of the exports that define them.
func (v *VirtualWorkspaces) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	workspace, export := exportOf(ctx)
	if !a.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	resource := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	reach, err := v.Bindings.Reach(ctx, export, workspace.In, resource, a.GetVerb())
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if reach == nil && !workspace.In.Wildcard {
		virtual, err := v.Bindings.Virtual(ctx, export, workspace.In, resource)
		switch {
		case err != nil:
			return authorizer.DecisionNoOpinion, "", err
		case virtual != nil:
			return authorizer.DecisionAllow, "", nil // writes are rejected with 405 Method Not Allowed
		default:
			return authorizer.DecisionDeny, v.denialReason(workspace.In, export, resource, a.GetVerb()), nil
		}
	}
	switch {
	case reach == nil:
		return authorizer.DecisionAllow, "", nil // not found, or virtual storage
	case !reach.Own() && a.GetSubresource() != "" && a.GetSubresource() != "status":
		// Accepting a claim on e.g. serviceaccounts must not give access to their tokens.
		return authorizer.DecisionDeny, "permission claims apply to objects and their status, not to " + a.GetSubresource(), nil
	case reach.Own() || reach.Identity == "" || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup):
		return authorizer.DecisionAllow, "", nil
	}
	return v.Bindings.PermitsClaim(ctx, v.Rules, export.Cluster, reach.Identity, a)
}

// Shows implements authz.VirtualWorkspaces: it reports whether the logical cluster binds the export.
func (v *VirtualWorkspaces) Shows(ctx context.Context) bool {
	workspace, export := exportOf(ctx)
	return workspace.In.Wildcard || v.Bindings.Binds(workspace.In.Name, export)
}

// denialReason must not contain the logical cluster's name, because providers may specify any path.
func (v *VirtualWorkspaces) denialReason(in request.Cluster, export client.Key, resource schema.GroupResource, verb string) string {
	advice := "bind it there"
	if v.Bindings.Binds(in.Name, export) {
		advice = "the APIExport needs a permission claim for it, and the APIBinding must accept the claim"
	}
	return fmt.Sprintf("no APIBinding in the logical cluster permits the APIExport %s to %s %s: %s", export.Name, verb, resource, advice)
}

func exportOf(ctx context.Context) (*request.VirtualWorkspace, client.Key) {
	workspace := request.VirtualWorkspaceFrom(ctx)
	provider, _ := request.ClusterFrom(ctx)
	return workspace, client.Key{Cluster: provider.Name, Name: workspace.Name}
}

// Allows returns the objects of a resource on which a request through a virtual workspace may use a verb.
func (v *VirtualWorkspaces) Allows(ctx context.Context, resource schema.GroupResource, verb string) (claims.Selection, error) {
	from, ok := request.ThroughFrom(ctx)
	if !ok {
		return claims.Selection{}, nil
	}
	in, _ := request.ClusterFrom(ctx)
	reach, err := v.Bindings.Reach(ctx, client.Key{Cluster: from.Provider, Name: from.VirtualWorkspace}, in, resource, verb)
	switch {
	case err != nil || reach == nil:
		return claims.Selection{}, authz.Unavailable(err)
	case reach.Own():
		return claims.Select(nil), nil
	default:
		return reach.Set.Selection(in.Name), nil
	}
}

// Serve redirects a request to the consumers, or returns an error. It must run after authorization and limits, and
// before the handlers of custom resources.
func (v *VirtualWorkspaces) Serve(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next http.Handler) error {
	redirected, err := v.redirect(r, info)
	if err == nil && !info.IsResourceRequest {
		_, export := exportOf(r.Context())
		return v.serveDocuments(w, redirected, export)
	}
	if err == nil {
		next.ServeHTTP(w, redirected)
	}
	return err
}

// redirect returns the request in the consumer's logical cluster, or in all of them.
func (v *VirtualWorkspaces) redirect(r *http.Request, info *genericapirequest.RequestInfo) (*http.Request, error) {
	ctx := r.Context()
	workspace, export := exportOf(ctx)
	from := request.ScopeFrom(ctx)
	if !workspace.In.Wildcard && v.Inactive(workspace.In.Name) {
		return nil, forbidden("logical cluster is marked inactive")
	}
	if workspace.In.Wildcard && !from.Mount.Wildcard(info.Verb, info.IsResourceRequest) {
		return nil, request.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			info.Verb+" is not supported in the `*` logical cluster: only list and watch of resources are")
	}
	if workspace.In.Wildcard && info.Namespace != "" {
		return nil, apierrors.NewBadRequest("the namespaces of different logical clusters are unrelated: request the objects of all namespaces, or of one logical cluster")
	}
	through := request.Through{Provider: export.Cluster, VirtualWorkspace: workspace.Name, Mount: from.Mount}
	ctx = identity.WithSender(request.WithThrough(request.WithCluster(ctx, workspace.In), through))
	if u, ok := genericapirequest.UserFrom(ctx); ok && !workspace.In.Wildcard {
		ctx = genericapirequest.WithUser(ctx, identity.Through(workspace.In.Name, u))
	}
	if !info.IsResourceRequest {
		return r.WithContext(ctx), nil
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	reach, err := v.Bindings.Reach(ctx, export, workspace.In, resource, info.Verb)
	switch {
	case err != nil:
		return nil, err
	case reach == nil:
		virtual, err := v.Bindings.Virtual(ctx, export, workspace.In, resource)
		if virtual != nil || err != nil {
			return r.WithContext(customresource.WithReadOnly(ctx, virtual)), err
		}
		if !workspace.In.Wildcard { // the binding changed after authorization
			return nil, forbidden(v.denialReason(workspace.In, export, resource, info.Verb))
		}
		notFound := apierrors.NewNotFound(resource, info.Name)
		notFound.ErrStatus.Message = fmt.Sprintf("the APIExport %s neither offers %s nor has a permission claim to %s it", export.Name, resource, info.Verb)
		return nil, notFound
	case reach.Own():
		// Objects of system APIs, which root exports, have no identity in storage.
		through.Unrestricted = reach.Stored == ""
		ctx = request.WithIdentity(request.WithThrough(ctx, through), reach.Resource, reach.Identity)
	default:
		ctx = claims.WithSet(ctx, reach.Set)
	}
	return r.WithContext(ctx), nil
}

func (v *VirtualWorkspaces) serveDocuments(w http.ResponseWriter, r *http.Request, key client.Key) error {
	ctx := r.Context()
	export, err := v.Bindings.Export(ctx, key)
	if err == nil && export == nil {
		err = apierrors.NewNotFound(apisv1alpha2.Resource("apiexports"), key.Name)
	}
	if err != nil {
		return err
	}
	plain, defined, err := v.Bindings.Claimed(ctx, export)
	if err != nil {
		return err
	}
	if bindings.ReadsBindingsOnly(export) {
		verbs := definitions.Verbs{Object: []string{"get", "list", "watch"}}
		r = r.WithContext(definitions.WithVerbs(ctx, apisv1alpha2.Resource("apibindings"), verbs))
	}
	if !v.ServeDocuments(w, r, plain, defined) {
		return request.NotFound("the virtual workspace of an APIExport only serves resources, discovery and OpenAPI, not " + r.URL.Path)
	}
	return nil
}

func forbidden(message string) error {
	return request.StatusError(http.StatusForbidden, metav1.StatusReasonForbidden, message)
}
