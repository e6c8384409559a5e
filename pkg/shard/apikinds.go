package shard

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/admission/apikinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// apiKinds is what admission asks about exports and their bindings. Exports of other
// shards cannot be bound yet: paths lead to logical clusters of this one only.
func (s *Server) apiKinds() apikinds.Config {
	return apikinds.Config{
		PathOf: s.local.pathOf,
		Resolve: func(path logicalcluster.Path) (logicalcluster.Name, bool) {
			name, ok := s.local.resolve(path)
			return name, ok && s.local.has(name)
		},
		MayBind: func(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error) {
			decision, _, err := s.rules.Authorize(request.WithClusterName(ctx, provider), authorizer.AttributesRecord{
				User: u, Verb: "bind", ResourceRequest: true, Name: export,
				APIGroup: apisv1alpha2.SchemeGroupVersion.Group, APIVersion: apisv1alpha2.SchemeGroupVersion.Version, Resource: "apiexports",
			})
			return decision == authorizer.DecisionAllow, err
		},
	}
}
