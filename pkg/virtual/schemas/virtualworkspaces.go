// Package schemas serves a virtual workspace for each logical cluster with the APIResourceSchemas that it has bound,
// from any provider:
//
//	/services/apiresourceschema/<consumer>/clusters/{*,<consumer>}/apis/apis.kcp.io/v1alpha1/apiresourceschemas
//
// Users who may get apibindings in the consumer may get, list and watch the schemas. They are the shard's copies of the
// schemas, served as the originals, without a separate server or storage (bindings.Index.WithBoundSchemas).
package schemas

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

var verbs = definitions.Verbs{Object: []string{"get", "list", "watch"}}

// Config configures VirtualWorkspaces.
type Config struct {
	Bindings *bindings.Index
	// Local reports whether a logical cluster is on this shard.
	Local func(name logicalcluster.Name) bool
	// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
	// Codecs encode errors.
	Codecs runtime.NegotiatedSerializer
}

// VirtualWorkspaces serves the virtual workspaces of all logical clusters of the shard.
type VirtualWorkspaces struct{ config Config }

// NewSchemaVirtualWorkspaces returns the virtual workspaces.
func NewSchemaVirtualWorkspaces(config Config) *VirtualWorkspaces { return &VirtualWorkspaces{config} }

// Needs returns the permission that is required for access: get on apibindings in the consumer.
func (*VirtualWorkspaces) Needs(_ context.Context, a authorizer.Attributes) authorizer.Attributes {
	gv := apisv1alpha2.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: "get", ResourceRequest: true, APIGroup: gv.Group, APIVersion: gv.Version, Resource: "apibindings",
	}
}

// Permits implements authz.VirtualWorkspaces. The filter rejects everything except reading the schemas.
func (v *VirtualWorkspaces) Permits(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
	if consumer, err := request.ClusterNameFrom(ctx); err == nil && !v.config.Local(consumer) {
		return authorizer.DecisionDeny, "the logical cluster is not on this shard", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// Shows implements authz.VirtualWorkspaces: the request must be for the logical cluster for which it was authorized.
func (*VirtualWorkspaces) Shows(ctx context.Context) bool {
	scope := request.ScopeFrom(ctx)
	return scope.VirtualWorkspace.In.Wildcard || scope.VirtualWorkspace.In == scope.Cluster
}

// Wrap returns the filter that serves the virtual workspaces.
func (v *VirtualWorkspaces) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := genericapirequest.RequestInfoFrom(ctx)
		if !ok {
			v.respond(w, r, apierrors.NewInternalError(errors.New("no request info in the context")))
			return
		}
		scope := request.ScopeFrom(ctx)
		consumer := scope.Cluster.Name
		if !scope.VirtualWorkspace.In.Wildcard && scope.VirtualWorkspace.In.Name != consumer {
			v.respond(w, r, request.NotFound("only schemas that the logical cluster itself has bound are served: use "+scope.Mount.Prefix+consumer.String()+request.ClusterPath(request.Wildcard)))
			return
		}
		if !info.IsResourceRequest {
			if !v.config.ServeDocuments(w, r.WithContext(definitions.WithVerbs(ctx, bindings.SchemasResource, verbs)), map[schema.GroupResource]bool{bindings.SchemasResource: true}, nil) {
				v.respond(w, r, request.NotFound("only apiresourceschemas, discovery and OpenAPI are served here, not "+r.URL.Path))
			}
			return
		}
		if err := validate(info); err != nil {
			v.respond(w, r, err)
			return
		}
		ctx, done, err := v.config.Bindings.WithBoundSchemas(ctx, consumer)
		if err != nil {
			v.respond(w, r, err)
			return
		}
		defer done()
		next.ServeHTTP(w, r.WithContext(request.WithThrough(ctx, request.Through{Mount: scope.Mount, Provider: consumer})))
	})
}

// validate returns an error for requests that are not served.
func validate(info *genericapirequest.RequestInfo) error {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	switch {
	case resource != bindings.SchemasResource, info.Subresource != "", info.Namespace != "":
		return request.NotFound("only apiresourceschemas are served here")
	case !slices.Contains(verbs.Object, info.Verb):
		return apierrors.NewMethodNotSupported(resource, info.Verb)
	default:
		return nil
	}
}

func (v *VirtualWorkspaces) respond(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, v.config.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
}
