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
	"net/http"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

var verbs = definitions.Verbs{Object: []string{"get", "list", "watch"}}

// VirtualWorkspaces serves the virtual workspaces of all logical clusters of the shard.
type VirtualWorkspaces struct {
	Bindings *bindings.Index
	// Local reports whether a logical cluster is on this shard.
	Local func(name logicalcluster.Name) bool
	// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
}

// Needs returns the permission that is required for access: get on apibindings in the consumer.
func (*VirtualWorkspaces) Needs(_ context.Context, a authorizer.Attributes) (authorizer.Attributes, error) {
	gv := apisv1alpha2.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: "get", ResourceRequest: true, APIGroup: gv.Group, APIVersion: gv.Version, Resource: "apibindings",
	}, nil
}

// Permits implements authz.VirtualWorkspaces. The filter rejects everything except reading the schemas.
func (v *VirtualWorkspaces) Permits(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
	if consumer, err := request.ClusterNameFrom(ctx); err == nil && !v.Local(consumer) {
		return authorizer.DecisionDeny, "the logical cluster is not on this shard", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// Shows implements authz.VirtualWorkspaces: the request must be for the logical cluster for which it was authorized.
func (*VirtualWorkspaces) Shows(ctx context.Context) bool {
	scope := request.ScopeFrom(ctx)
	return scope.VirtualWorkspace.In.Wildcard || scope.VirtualWorkspace.In == scope.Cluster
}

// Serve serves a request, or returns an error.
func (v *VirtualWorkspaces) Serve(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next http.Handler) error {
	ctx := r.Context()
	scope := request.ScopeFrom(ctx)
	consumer, resource := scope.Cluster.Name, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	switch {
	case !scope.VirtualWorkspace.In.Wildcard && scope.VirtualWorkspace.In.Name != consumer:
		return request.NotFound("only schemas that the logical cluster itself has bound are served: use " + scope.Mount.Prefix + consumer.String() + request.ClusterPath(request.Wildcard))
	case !info.IsResourceRequest:
		if !v.ServeDocuments(w, r.WithContext(definitions.WithVerbs(ctx, bindings.SchemasResource, verbs)), map[schema.GroupResource]bool{bindings.SchemasResource: true}, nil) {
			return request.NotFound("only apiresourceschemas, discovery and OpenAPI are served here, not " + r.URL.Path)
		}
		return nil
	case resource != bindings.SchemasResource, info.Subresource != "", info.Namespace != "":
		return request.NotFound("only apiresourceschemas are served here")
	case !slices.Contains(verbs.Object, info.Verb):
		return apierrors.NewMethodNotSupported(resource, info.Verb)
	}
	ctx, err := v.Bindings.WithBoundSchemas(ctx, consumer)
	if err != nil {
		return err
	}
	next.ServeHTTP(w, r.WithContext(request.WithThrough(ctx, request.Through{Mount: scope.Mount, Provider: consumer})))
	return nil
}
