package shard

import (
	"context"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/virtual/admin"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/pkg/virtual/initialization"
	"github.com/shardplane/shardplane/pkg/virtual/replication"
	"github.com/shardplane/shardplane/pkg/virtual/schemas"
)

// view is one kind of views.
type view interface {
	// Needs returns what whoever uses a view has to be allowed in the logical cluster that
	// grants it, for the attributes of a request.
	Needs(ctx context.Context, a authorizer.Attributes) authorizer.Attributes
	// Permits is that of authz.Views.
	Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// Shows is that of authz.Views.
	Shows(ctx context.Context) bool
	// Wrap returns the filter of requests that come through such a view.
	Wrap(next http.Handler) http.Handler
}

// views are all kinds, by where they are. They implement authz.Views.
type views struct {
	kinds map[*request.Mount]view
	// local reports whether the shard holds a logical cluster. About others rules decide.
	local func(name logicalcluster.Name) bool
	rules authorizer.Authorizer
	// elsewhere finds the LogicalClusters of other shards.
	elsewhere authz.FindLogicalCluster
}

// newViews makes the views.
func (s *Server) newViews() {
	s.exportViews = apiexport.New(apiexport.Config{
		Bindings: s.bindings, Rules: s.providersRules(), Inactive: s.local.inactive, Codecs: registry.Codecs,
		Documents: func() apiexport.Documents { return s.customResources },
	})
	s.views = views{kinds: map[*request.Mount]view{request.APIExports: s.exportViews}, local: s.local.has, rules: s.providersRules(), elsewhere: s.findElsewhere}
	ofTypes := initialization.New(initialization.Config{
		Type: func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error) {
			return s.informers.WorkspaceTypes.Get(key.Cluster, "", key.Name)
		},
		Find: s.local.find, Read: s.local.read, Rules: s.rules, Codecs: registry.Codecs,
		Bounds: func(next authorizer.Authorizer) authorizer.Authorizer {
			return authz.WithProtectedStatus(authz.WithMaximalPermission(next, s.bindings.MaximalPermission(s.providersRules())))
		},
		ServeDocuments: s.serveDocuments,
	})
	s.views.kinds[request.APIResourceSchemas] = schemas.New(schemas.Config{
		Bindings: s.bindings, Local: s.local.has, Codecs: registry.Codecs, ServeDocuments: s.serveDocuments,
	})
	s.views.kinds[request.Replication] = replication.NewVirtualWorkspaces(replication.VirtualWorkspacesConfig{
		Replicas: s.replicas, Bindings: s.bindings, Inactive: s.local.inactive, ServeDocuments: s.serveDocuments, Codecs: registry.Codecs,
	})
	for _, mount := range initialization.Mounts() {
		s.views.kinds[mount] = ofTypes
	}
}

// findElsewhere returns the LogicalCluster of another shard, as far as this one knows of it,
// or nil.
func (s *Server) findElsewhere(_ context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc, err := s.informers.AllClusters.Get(name, "", corev1alpha1.LogicalClusterName)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	return lc, err
}

// serveDocuments is ServeDocuments of what serves custom resources, which is made later.
func (s *Server) serveDocuments(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool {
	return s.customResources.ServeDocuments(w, r, resources, all)
}

func (v views) of(ctx context.Context) view { return v.kinds[request.ScopeFrom(ctx).Mount] }

// Opens implements authz.Views. About a logical cluster of another shard the rules, and the
// groups that it requires, decide that are known here. That one is not asked: the time that
// it takes would tell that it has it.
func (v views) Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error) {
	needs := v.of(ctx).Needs(ctx, a)
	granting, _ := request.ClusterFrom(ctx)
	if granting.Name == "" || v.local(granting.Name) || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup) {
		return next.Authorize(ctx, needs)
	}
	decision, _, err := authz.WithRequiredGroups(v.rules, v.elsewhere).Authorize(ctx, needs)
	if decision != authorizer.DecisionAllow {
		return authorizer.DecisionNoOpinion, authz.NotPermittedReason, err
	}
	return decision, "", nil
}

// Permits implements authz.Views.
func (v views) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return v.of(ctx).Permits(ctx, a)
}

// Shows implements authz.Views.
func (v views) Shows(ctx context.Context) bool { return v.of(ctx).Shows(ctx) }

// wrap is the filter of all views.
func (v views) wrap(next http.Handler) http.Handler {
	filters := make(map[*request.Mount]http.Handler, len(v.kinds))
	for _, mount := range request.VirtualWorkspaceMounts() {
		filters[mount] = v.kinds[mount].Wrap(next) // one that has no kind must not start
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler := next
		if scope := request.ScopeFrom(r.Context()); scope.VirtualWorkspace != nil {
			handler = filters[scope.Mount]
		}
		handler.ServeHTTP(w, r)
	})
}

// withAdmin is the filter that tells of the whole installation.
func (s *Server) withAdmin(next http.Handler) http.Handler {
	return admin.New(admin.Config{Shards: s.informers.Shards, ServeDocuments: s.serveDocuments})(next)
}

// grantor returns the logical cluster of the object that grants a view, or "" if there is none.
// Before all that other shards have was read, it returns an error instead.
func (s *Server) grantor(path logicalcluster.Path, mount *request.Mount, object string) (logicalcluster.Name, error) {
	if mount == request.APIExports {
		if name, err := s.exportCluster(path, object); name != "" && err == nil {
			return name, nil
		}
		return "", authz.Unavailable(s.informers.APIExports.Read())
	}
	if name, ok := s.local.resolve(path); ok || mount == request.APIResourceSchemas {
		return name, nil
	}
	if mount == request.Replication {
		name, _ := path.Name() // the endpoints of slices have names
		return name, nil
	}
	t, ok := s.informers.Types()(path, tenancyv1alpha1.WorkspaceTypeName(object))
	if !ok {
		return "", authz.Unavailable(s.informers.WorkspaceTypes.Read())
	}
	return logicalcluster.From(t), nil
}
