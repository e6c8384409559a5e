package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// typeTimeout is how long a Workspace waits for a type that is not known yet.
const typeTimeout = 500 * time.Millisecond

// workspaceTypes is what admission asks about the types of new Workspaces.
func (s *Server) workspaceTypes() workspacetype.Config {
	types := s.informers.Types()
	return workspacetype.Config{
		MayUse:  s.mayUse,
		Timeout: typeTimeout,
		Types: func(ctx context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
			lc, err := s.local.find(ctx, parent)
			if err != nil {
				return nil, err
			}
			if lc == nil {
				return nil, fmt.Errorf("logical cluster %q is not here", parent)
			}
			found, err := types.Find(ws, lc)
			if incomplete := s.informers.TypesComplete(); err != nil && incomplete != nil {
				return nil, incomplete // it may exist
			}
			return found, err
		},
	}
}

// mayUse reports whether the rules of a type's logical cluster let u use it.
func (s *Server) mayUse(ctx context.Context, u user.Info, t *tenancyv1alpha1.WorkspaceType) (bool, error) {
	shard := t.Annotations[request.ShardAnnotation]
	if shard == "" && s.sources.Root != nil {
		shard = corev1alpha1.RootShard // without a cache server types are read there
	}
	return s.reviews.may(ctx, u, question{
		cluster: logicalcluster.From(t), shard: shard, verb: "use", resource: tenancyv1alpha1.SchemeGroupVersion.WithResource("workspacetypes"), name: t.Name,
	})
}
