package shard

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

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
		Bindings: s.bindings, Rules: s.providersRules(), Local: s.local.has, Elsewhere: s.mayOpenExport, Inactive: s.local.inactive, Codecs: registry.Codecs,
		Documents: func() apiexport.Documents { return s.customResources },
	})
	s.views = views{request.APIExports: s.exportViews}
	ofTypes := initialization.New(initialization.Config{
		Type: func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error) {
			return s.informers.WorkspaceTypes.Get(key.Cluster, "", key.Name)
		},
		Local: s.local.has, Elsewhere: s.mayOpenType, Find: s.local.find, Rules: s.rules, Codecs: registry.Codecs,
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

// mayOpenExport reports whether the rules of a provider on another shard let the sender
// of a request use the view of an export.
func (s *Server) mayOpenExport(ctx context.Context, key client.Key, a authorizer.Attributes) (bool, error) {
	q := question{cluster: key.Cluster, verb: a.GetVerb(), name: key.Name, resource: apisv1alpha2.SchemeGroupVersion.WithResource("apiexports"), subresource: a.GetSubresource()}
	if found, err := s.informers.APIExports.Get(key.Cluster, "", key.Name); err == nil {
		q.shard = found.Annotations[request.ShardAnnotation]
	}
	return s.mayOpen(ctx, a, q)
}

// mayOpenType is mayOpenExport for views of a WorkspaceType.
func (s *Server) mayOpenType(ctx context.Context, key client.Key, a authorizer.Attributes) (bool, error) {
	q := question{cluster: key.Cluster, verb: a.GetVerb(), name: key.Name, resource: tenancyv1alpha1.SchemeGroupVersion.WithResource("workspacetypes")}
	if found, err := s.informers.WorkspaceTypes.Get(key.Cluster, "", key.Name); err == nil {
		q.shard = found.Annotations[request.ShardAnnotation]
	}
	return s.mayOpen(ctx, a, q)
}

// mayOpen answers a question as far as this shard knows the rules, or the other says.
func (s *Server) mayOpen(ctx context.Context, a authorizer.Attributes, q question) (bool, error) {
	may, err := s.reviews.may(ctx, a.GetUser(), q)
	if unreachable(err) {
		klog.FromContext(ctx).Info("Cannot ask the other shard who may use a view", "shard", q.shard, "resource", q.resource.Resource, "name", q.name, "err", err)
		return false, nil
	}
	return may, err
}
