package shard

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/pkg/virtual/initialization"
)

// view is one kind of views.
type view interface {
	authz.Views
	Wrap(next http.Handler) http.Handler
}

// views are all kinds, by where they are. They implement authz.Views.
type views map[*request.Mount]view

// newViews makes the views.
func (s *Server) newViews() {
	s.exportViews = apiexport.New(apiexport.Config{
		Bindings: s.bindings, Rules: s.providersRules(), Local: s.local.has, Inactive: s.local.inactive, Codecs: registry.Codecs,
		Documents: func() apiexport.Documents { return s.customResources },
	})
	s.views = views{request.APIExports: s.exportViews}
	ofTypes := initialization.New(initialization.Config{
		Type: func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error) {
			return s.informers.WorkspaceTypes.Get(key.Cluster, "", key.Name)
		},
		Local: s.local.has, Providers: s.providersRules(), Find: s.local.find, Rules: s.rules, Codecs: registry.Codecs,
		Bounds: func(next authorizer.Authorizer) authorizer.Authorizer {
			return authz.WithProtectedStatus(authz.WithMaximalPermission(next, s.bindings.MaximalPermission(s.providersRules())))
		},
		ServeDocuments: func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool {
			return s.customResources.ServeDocuments(w, r, resources, all)
		},
	})
	for _, mount := range initialization.Mounts() {
		s.views[mount] = ofTypes
	}
}

// mounts are where the views are, in a fixed order.
func (v views) mounts() []*request.Mount {
	return slices.SortedFunc(maps.Keys(v), func(a, b *request.Mount) int { return strings.Compare(a.Prefix, b.Prefix) })
}

func (v views) of(ctx context.Context) view { return v[request.ScopeFrom(ctx).Mount] }

// Opens implements authz.Views.
func (v views) Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error) {
	return v.of(ctx).Opens(ctx, a, next)
}

// Permits implements authz.Views.
func (v views) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return v.of(ctx).Permits(ctx, a)
}

// wrap is the filter of all views.
func (v views) wrap(next http.Handler) http.Handler {
	filters := make(map[*request.Mount]http.Handler, len(v))
	for mount, view := range v {
		filters[mount] = view.Wrap(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler := next
		if scope := request.ScopeFrom(r.Context()); scope.View != nil {
			handler = filters[scope.Mount]
		}
		handler.ServeHTTP(w, r)
	})
}

// grantor returns the logical cluster of the object that grants a view.
func (s *Server) grantor(path logicalcluster.Path, mount *request.Mount, object string) (logicalcluster.Name, bool) {
	if mount == request.APIExports {
		name, err := s.exportCluster(path, object)
		return name, err == nil && name != ""
	}
	if name, ok := s.local.resolve(path); ok {
		return name, true
	}
	t, ok := s.informers.Types()(path, tenancyv1alpha1.WorkspaceTypeName(object))
	if !ok {
		return "", false
	}
	return logicalcluster.From(t), true
}
