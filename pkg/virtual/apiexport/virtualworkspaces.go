// Package apiexport is the view of an API export: what the consumers on a shard let its
// provider see and do, as one API root.
//
//	/services/apiexport/<provider>/<export>/clusters/{*,<consumer>}/…
//
// There is no second server. Until a request enters the view it is one to the provider's
// logical cluster, which is where it is authorized and what it is counted for. Then it
// goes on in the consumer's logical cluster, or in all of them, to the same handlers and
// storage as any other request, restricted to what bindings let be seen.
//
//	own resources    the objects of the export's identity; with virtual storage, the replicas, read-only
//	claimed ones     those in a claims.Set, which bindings keep up to date
//	apibindings      those to the export; with an accepted claim, what that says
package apiexport

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
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

// Documents answer requests for discovery and OpenAPI, as customresource.Server does.
type Documents interface {
	ServeDocuments(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
}

// Config is what views need.
type Config struct {
	// Bindings knows what can be seen.
	Bindings *bindings.Index
	// Rules decide, by the roles and bindings that are known, about maximal permission
	// policies.
	Rules authorizer.Authorizer
	// Inactive reports whether a logical cluster is switched off.
	Inactive func(name logicalcluster.Name) bool
	// Documents returns what tells of what there is to be seen.
	Documents func() Documents
	// Codecs encode errors.
	Codecs runtime.NegotiatedSerializer
}

// Views are those of all exports that have consumers on the shard.
type VirtualWorkspaces struct{ config Config }

// New returns the views.
func New(config Config) *VirtualWorkspaces { return &VirtualWorkspaces{config} }

// Needs returns what opens a view: the request's verb on apiexports/content, also for
// discovery.
func (*VirtualWorkspaces) Needs(ctx context.Context, a authorizer.Attributes) authorizer.Attributes {
	gv := apisv1alpha2.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: a.GetVerb(), ResourceRequest: true,
		APIGroup: gv.Group, APIVersion: gv.Version, Resource: "apiexports", Subresource: "content", Name: request.VirtualWorkspaceFrom(ctx).Name,
	}
}

// Permits decides what authz.Views does: in one logical cluster, a binding has to let the export
// see the resource, and do with it what the request does. The maximal permission policies
// of other exports hold for what is claimed of them.
func (v *VirtualWorkspaces) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	view, export := exportOf(ctx)
	if !a.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	resource := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	reach, err := v.config.Bindings.Reach(ctx, export, view.In, resource, a.GetVerb())
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if reach == nil && !view.In.Wildcard {
		virtual, err := v.config.Bindings.Virtual(ctx, export, view.In, resource)
		switch {
		case err != nil:
			return authorizer.DecisionNoOpinion, "", err
		case virtual != nil:
			return authorizer.DecisionAllow, "", nil // writes are rejected with 405 Method Not Allowed
		default:
			return authorizer.DecisionDeny, v.notLet(view.In, export, resource, a.GetVerb()), nil
		}
	}
	switch {
	case reach == nil:
		return authorizer.DecisionAllow, "", nil // there is no such resource, or it has virtual storage
	case !reach.Own() && a.GetSubresource() != "" && a.GetSubresource() != "status":
		// Tokens of service accounts, say, are not what somebody means who lets them be seen.
		return authorizer.DecisionDeny, "permission claims are for objects and their status, not for " + a.GetSubresource(), nil
	case reach.Own() || reach.Identity == "" || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup):
		return authorizer.DecisionAllow, "", nil
	}
	return v.config.Bindings.PermitsClaim(ctx, v.config.Rules, export.Cluster, reach.Identity, a)
}

// Shows reports what authz.Views does: whether the logical cluster binds the export.
func (v *VirtualWorkspaces) Shows(ctx context.Context) bool {
	view, export := exportOf(ctx)
	return view.In.Wildcard || v.config.Bindings.Binds(view.In.Name, export)
}

// notLet returns why an export may not do something. It does not name the logical cluster, because providers
// may ask for any, by path.
func (v *VirtualWorkspaces) notLet(in request.Cluster, export client.Key, resource schema.GroupResource, verb string) string {
	advice := "bind it there"
	if v.config.Bindings.Binds(in.Name, export) {
		advice = "the APIExport needs a permission claim for that, which the APIBinding accepts"
	}
	return fmt.Sprintf("no APIBinding in the logical cluster lets the APIExport %s %s %s: %s", export.Name, verb, resource, advice)
}

func exportOf(ctx context.Context) (*request.VirtualWorkspace, client.Key) {
	view := request.VirtualWorkspaceFrom(ctx)
	provider, _ := request.ClusterFrom(ctx)
	return view, client.Key{Cluster: provider.Name, Name: view.Name}
}

// Allows returns the objects of a resource on which a request that has entered a view may use a verb.
func (v *VirtualWorkspaces) Allows(ctx context.Context, resource schema.GroupResource, verb string) (claims.Selection, error) {
	from, ok := request.ThroughFrom(ctx)
	if !ok {
		return claims.Selection{}, nil
	}
	in, _ := request.ClusterFrom(ctx)
	reach, err := v.config.Bindings.Reach(ctx, client.Key{Cluster: from.Provider, Name: from.VirtualWorkspace}, in, resource, verb)
	switch {
	case err != nil || reach == nil:
		return claims.Selection{}, authz.Unavailable(err)
	case reach.Own():
		return claims.Select(nil), nil
	default:
		return reach.Set.Selection(in.Name), nil
	}
}

// Wrap returns the filter that has requests enter their views, which all of its requests
// have. It comes behind all that decides about requests and counts them, and before what
// serves custom resources.
func (v *VirtualWorkspaces) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if !ok {
			v.respond(w, r, apierrors.NewInternalError(errors.New("no request info in the context")))
			return
		}
		entered, err := v.enter(r, info)
		switch {
		case err != nil:
			v.respond(w, r, err)
		case info.IsResourceRequest:
			next.ServeHTTP(w, entered)
		default:
			v.serveDocuments(w, entered, request.ScopeFrom(r.Context()))
		}
	})
}

// enter returns a request as it goes on where the view leads to.
func (v *VirtualWorkspaces) enter(r *http.Request, info *genericapirequest.RequestInfo) (*http.Request, error) {
	ctx := r.Context()
	view, export := exportOf(ctx)
	from := request.ScopeFrom(ctx)
	if !view.In.Wildcard && v.config.Inactive(view.In.Name) {
		return nil, forbidden("logical cluster is marked inactive")
	}
	if view.In.Wildcard && !from.Mount.Wildcard(info.Verb, info.IsResourceRequest) {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
			Message: info.Verb + " is not supported in the `*` logical cluster: only list and watch of resources are",
		}}
	}
	if view.In.Wildcard && info.Namespace != "" {
		return nil, apierrors.NewBadRequest("the namespaces of different logical clusters have nothing to do with each other: ask for the objects of all namespaces, or of one logical cluster")
	}
	through := request.Through{Provider: export.Cluster, VirtualWorkspace: view.Name, Mount: from.Mount}
	ctx = identity.WithSender(request.WithThrough(request.WithCluster(ctx, view.In), through))
	if u, ok := genericapirequest.UserFrom(ctx); ok && !view.In.Wildcard {
		ctx = genericapirequest.WithUser(ctx, identity.Through(view.In.Name, u))
	}
	if !info.IsResourceRequest {
		return r.WithContext(ctx), nil
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	reach, err := v.config.Bindings.Reach(ctx, export, view.In, resource, info.Verb)
	switch {
	case err != nil:
		return nil, err
	case reach == nil:
		virtual, err := v.config.Bindings.Virtual(ctx, export, view.In, resource)
		if virtual != nil || err != nil {
			return r.WithContext(customresource.WithReadOnly(ctx, virtual)), err
		}
		if !view.In.Wildcard { // since it was authorized
			return nil, forbidden(v.notLet(view.In, export, resource, info.Verb))
		}
		none := apierrors.NewNotFound(resource, info.Name)
		none.ErrStatus.Message = fmt.Sprintf("the APIExport %s neither offers %s nor has a permission claim to %s it", export.Name, resource, info.Verb)
		return nil, none
	case reach.Own():
		// The objects of the system APIs, which root exports, have no identity in storage.
		through.Unrestricted = reach.Stored == ""
		ctx = request.WithIdentity(request.WithThrough(ctx, through), reach.Resource, reach.Identity)
	default:
		ctx = claims.WithSet(ctx, reach.Set)
	}
	return r.WithContext(ctx), nil
}

// serveDocuments answers what is not for a resource.
func (v *VirtualWorkspaces) serveDocuments(w http.ResponseWriter, r *http.Request, from request.Scope) {
	ctx := r.Context()
	key := client.Key{Cluster: from.Cluster.Name, Name: from.VirtualWorkspace.Name}
	export, err := v.config.Bindings.Export(ctx, key)
	if err == nil && export == nil {
		err = apierrors.NewNotFound(apisv1alpha2.Resource("apiexports"), key.Name)
	}
	if err != nil {
		v.respond(w, r, err)
		return
	}
	plain, defined, err := v.config.Bindings.Claimed(ctx, export)
	if err != nil {
		v.respond(w, r, err)
		return
	}
	if bindings.ReadsBindingsOnly(export) {
		verbs := definitions.Verbs{Object: []string{"get", "list", "watch"}}
		r = r.WithContext(definitions.WithVerbs(ctx, apisv1alpha2.Resource("apibindings"), verbs))
	}
	if !v.config.Documents().ServeDocuments(w, r, plain, defined) {
		v.respond(w, r, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
			Message: "the view of an APIExport has resources, discovery and OpenAPI, and not " + r.URL.Path,
		}})
	}
}

func forbidden(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: message,
	}}
}

func (v *VirtualWorkspaces) respond(w http.ResponseWriter, r *http.Request, err error) {
	err = authz.Unavailable(err)
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		err = apierrors.NewInternalError(err)
	}
	responsewriters.ErrorNegotiated(err, v.config.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
}
