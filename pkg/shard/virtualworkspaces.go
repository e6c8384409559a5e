package shard

import (
	"context"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/admin"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/pkg/virtual/initialization"
	"github.com/shardplane/shardplane/pkg/virtual/replication"
	"github.com/shardplane/shardplane/pkg/virtual/schemas"
)

func (s *boundResources) newExportVirtualWorkspaces() *apiexport.VirtualWorkspaces {
	return apiexport.NewAPIExportVirtualWorkspaces(apiexport.Config{
		Bindings: s.bindings, Rules: s.providersRules(), Inactive: s.local.inactive, Codecs: registry.Codecs,
		Documents: func() apiexport.Documents { return s.late },
	})
}

func (s *boundResources) newVirtualWorkspaces(ofExports *apiexport.VirtualWorkspaces) virtualWorkspaces {
	ofTypes := initialization.NewInitializationVirtualWorkspaces(initialization.Config{
		Type: func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error) {
			return s.informers.WorkspaceTypes.Get(key.Cluster, "", key.Name)
		},
		Find: s.local.find, Read: s.local.read, Rules: s.rules, Codecs: registry.Codecs,
		Bounds: func(next authorizer.Authorizer) authorizer.Authorizer {
			return authz.WithProtectedStatus(authz.WithMaximalPermission(next, s.bindings.MaximalPermission(s.providersRules())))
		},
		ServeDocuments: s.late.ServeDocuments,
	})
	kinds := map[*request.Mount]virtualWorkspace{
		request.APIExports: ofExports,
		request.APIResourceSchemas: schemas.NewSchemaVirtualWorkspaces(schemas.Config{
			Bindings: s.bindings, Local: s.local.has, Codecs: registry.Codecs, ServeDocuments: s.late.ServeDocuments,
		}),
		request.Replication: replication.NewVirtualWorkspaces(replication.VirtualWorkspacesConfig{
			Replicas: s.replicas, Bindings: s.bindings, Inactive: s.local.inactive, ServeDocuments: s.late.ServeDocuments, Codecs: registry.Codecs,
		}),
	}
	for _, mount := range initialization.Mounts() {
		kinds[mount] = ofTypes
	}
	return virtualWorkspaces{kinds: kinds, local: s.local.has, rules: s.providersRules(), findRemote: s.findRemote}
}

// findRemote returns the replica of a LogicalCluster of another shard, or nil.
func (s *installation) findRemote(_ context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc, err := s.informers.AllClusters.Get(name, "", corev1alpha1.LogicalClusterName)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // not found
	}
	return lc, err
}

// withAdmin serves the Shards of the installation.
func (s *boundResources) withAdmin(next http.Handler) http.Handler {
	return admin.NewAdminVirtualWorkspace(admin.Config{Shards: s.informers.Shards, ServeDocuments: s.late.ServeDocuments})(next)
}

// grantor returns the logical cluster of the object that grants a virtual workspace, or "". It returns an error until
// the objects of other shards are loaded.
func (s *installation) grantor(path logicalcluster.Path, mount *request.Mount, object string) (logicalcluster.Name, error) {
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
		name, _ := path.Name() // endpoints of slices contain the name of the logical cluster
		return name, nil
	}
	t, ok := s.informers.Types()(path, tenancyv1alpha1.WorkspaceTypeName(object))
	if !ok {
		return "", authz.Unavailable(s.informers.WorkspaceTypes.Read())
	}
	return logicalcluster.From(t), nil
}
