package replication

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
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// VirtualWorkspacesConfig configures VirtualWorkspaces.
type VirtualWorkspacesConfig struct {
	Replicas *Replicas
	Bindings *bindings.Index
	// Inactive reports whether a logical cluster is marked inactive.
	Inactive func(name logicalcluster.Name) bool
	// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
	// Codecs encode errors.
	Codecs runtime.NegotiatedSerializer
}

// VirtualWorkspaces serves the virtual workspaces of endpoint slices of cached resources whose export has consumers
// on the shard.
type VirtualWorkspaces struct{ config VirtualWorkspacesConfig }

// NewVirtualWorkspaces returns the virtual workspaces.
func NewVirtualWorkspaces(config VirtualWorkspacesConfig) *VirtualWorkspaces {
	return &VirtualWorkspaces{config}
}

// offer is a resource that an export offers through an endpoint slice.
type offer struct {
	export   *apisv1alpha2.APIExport
	resource *apisv1alpha2.ResourceSchema
}

func (o *offer) key() client.Key { return client.KeyOf(o.export) }

// offerOf returns the offer through an endpoint slice, or nil.
func (x *Replicas) offerOf(provider logicalcluster.Name, slice string) *offer {
	for _, kind := range []string{apis.CachedSliceKind, apis.ClusterCachedSliceKind} {
		name := ""
		if s, err := x.config.Slices.Get(provider, "", slice); err == nil && kind == apis.CachedSliceKind {
			name = s.Spec.APIExport.Name
		}
		if s, err := x.config.ClusterSlices.Get(provider, "", slice); err == nil && kind == apis.ClusterCachedSliceKind {
			name = s.Spec.APIExport.Name
		}
		export, err := x.config.Exports.Get(provider, "", name)
		if name == "" || err != nil {
			continue
		}
		for i := range export.Spec.Resources {
			virtual := export.Spec.Resources[i].Storage.Virtual
			if virtual != nil && apis.CachedSliceKindOf(virtual.Reference) == kind && virtual.Reference.Name == slice {
				return &offer{export, &export.Spec.Resources[i]}
			}
		}
	}
	return nil
}

func (v *VirtualWorkspaces) offered(ctx context.Context) *offer {
	provider, _ := request.ClusterFrom(ctx)
	return v.config.Replicas.offerOf(provider.Name, request.VirtualWorkspaceFrom(ctx).Name)
}

// Needs returns the permission that is required for access: the request's verb on apiexports/content with the name of
// the slice's export, also for discovery.
func (v *VirtualWorkspaces) Needs(ctx context.Context, a authorizer.Attributes) authorizer.Attributes {
	name := "-" // not a valid name of an export
	if o := v.offered(ctx); o != nil {
		name = o.export.Name
	}
	gv := apisv1alpha2.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: a.GetVerb(), ResourceRequest: true,
		APIGroup: gv.Group, APIVersion: gv.Version, Resource: "apiexports", Subresource: "content", Name: name,
	}
}

// Permits implements authz.VirtualWorkspaces: in one logical cluster, there must be a binding to the export. Writes are
// permitted, because they are rejected with 405 Method Not Allowed.
func (v *VirtualWorkspaces) Permits(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
	if !v.Shows(ctx) {
		return authorizer.DecisionDeny, "no APIBinding in the logical cluster refers to the APIExport of the endpoint slice", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// Shows implements authz.VirtualWorkspaces: it reports whether the logical cluster binds the export.
func (v *VirtualWorkspaces) Shows(ctx context.Context) bool {
	in := request.VirtualWorkspaceFrom(ctx).In
	if in.Wildcard {
		return true
	}
	o := v.offered(ctx)
	return o != nil && v.config.Bindings.Binds(in.Name, o.key())
}

// Wrap returns the filter that redirects requests to the consumers.
func (v *VirtualWorkspaces) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if !ok {
			v.respond(w, r, apierrors.NewInternalError(errors.New("no request info in the context")))
			return
		}
		d, err := v.definition(r.Context(), info)
		if err != nil {
			v.respond(w, r, err)
			return
		}
		scope := request.ScopeFrom(r.Context())
		ctx := request.WithThrough(request.WithCluster(r.Context(), scope.VirtualWorkspace.In), request.Through{Provider: scope.Cluster.Name, VirtualWorkspace: scope.VirtualWorkspace.Name, Mount: scope.Mount})
		switch {
		case info.IsResourceRequest:
			next.ServeHTTP(w, r.WithContext(customresource.WithReadOnly(ctx, d)))
		case !v.config.ServeDocuments(w, r.WithContext(ctx), nil, []*definitions.Definition{d}):
			v.respond(w, r, request.NotFound("the virtual workspace of an endpoint slice only serves one resource, discovery and OpenAPI, not "+r.URL.Path))
		}
	})
}

// definition returns the definition with which a request is served.
func (v *VirtualWorkspaces) definition(ctx context.Context, info *genericapirequest.RequestInfo) (*definitions.Definition, error) {
	o, scope := v.offered(ctx), request.ScopeFrom(ctx)
	in := scope.VirtualWorkspace.In
	switch {
	case o == nil:
		return nil, request.NotFound("the endpoint slice does not exist, or no APIExport in its logical cluster offers a resource through it")
	case !in.Wildcard && v.config.Inactive(in.Name):
		return nil, request.StatusError(http.StatusForbidden, metav1.StatusReasonForbidden, "logical cluster is marked inactive")
	case in.Wildcard && !scope.Mount.Wildcard(info.Verb, info.IsResourceRequest):
		return nil, request.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			info.Verb+" is not supported in the `*` logical cluster: only list and watch of resources are")
	}
	resource := schema.GroupResource{Group: o.resource.Group, Resource: o.resource.Name}
	if requested := (schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}); info.IsResourceRequest && requested != resource {
		return nil, request.NotFound(fmt.Sprintf("only %s are served here", resource))
	}
	sch, err := v.config.Bindings.Offered(ctx, o.export, o.resource)
	if err == nil && sch == nil {
		err = request.NotFound("the APIResourceSchema " + o.resource.Schema + " of the provider does not exist, or is not valid")
	}
	if err != nil {
		return nil, err
	}
	d := &definitions.Definition{Schema: sch, Identity: o.export.Status.IdentityHash, Objects: v.config.Replicas.Of(o.key(), resource)}
	if in.Wildcard {
		d.Verbs = &definitions.Verbs{Object: []string{"list", "watch"}}
	}
	return d, nil
}

func (v *VirtualWorkspaces) respond(w http.ResponseWriter, r *http.Request, err error) {
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		err = apierrors.NewInternalError(err)
	}
	responsewriters.ErrorNegotiated(err, v.config.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
}
