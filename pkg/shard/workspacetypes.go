package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

var workspaceTypes = tenancyv1alpha1.SchemeGroupVersion.WithResource("workspacetypes")

// typeTimeout limits how long the creation of a Workspace waits for its type.
const typeTimeout = 500 * time.Millisecond

func (s *accessRules) workspaceTypes() workspacetype.Config {
	types := s.informers.Types()
	return workspacetype.Config{
		May:      s.mayUseType,
		WouldSee: s.wouldSee,
		Timeout:  typeTimeout,
		Types: func(ctx context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
			lc, err := s.local.find(ctx, parent)
			if err != nil {
				return nil, err
			}
			if lc == nil {
				return nil, fmt.Errorf("logical cluster %q is not on this shard", parent)
			}
			found, err := types.Allowed(ws, lc)
			if incomplete := s.informers.TypesComplete(); err != nil && len(found) == 0 && incomplete != nil {
				return nil, incomplete // the type may exist
			}
			return found, err
		},
	}
}

// mayUseType reports whether the rules of a type's logical cluster allow u to use it with a verb. As in mayBind, an
// unreachable shard allows nothing beyond the replicated rules, because an error would disclose that the type exists.
func (s *accessRules) mayUseType(ctx context.Context, u user.Info, verb string, t *tenancyv1alpha1.WorkspaceType) (bool, error) {
	shard := t.Annotations[request.ShardAnnotation]
	if shard == "" && s.sources.Root != nil {
		shard = corev1alpha1.RootShard // types are read there without a cache server
	}
	may, err := s.reviews.may(ctx, u, question{cluster: logicalcluster.From(t), shard: shard, verb: verb, resource: workspaceTypes, name: t.Name})
	if unreachable(err) {
		klog.FromContext(ctx).Info("Failed to review the use of a WorkspaceType on its shard", "shard", shard, "err", err)
		return false, nil
	}
	return may, err
}

// wouldSee reports whether u may read types of this name in all logical clusters in which they would be searched. Other
// shards receive no review, because the response time would disclose the shard of a logical cluster.
func (s *accessRules) wouldSee(ctx context.Context, u user.Info, parent logicalcluster.Name, ref tenancyv1alpha1.WorkspaceTypeReference) bool {
	path, up := logicalcluster.NewPath(ref.Path), false
	if ref.Path == "" {
		canonical, ok := s.local.pathOf(parent)
		if !ok {
			return false
		}
		path, up = logicalcluster.NewPath(canonical), true
	}
	for {
		cluster, ok := s.local.resolve(path)
		if !ok {
			return false
		}
		may, err := s.reviews.may(ctx, u, question{cluster: cluster, verb: "get", resource: workspaceTypes, name: string(ref.Name)})
		if err != nil || !may {
			return false
		}
		above, has := path.Parent()
		if !up || !has || above.Equal(path) {
			return true
		}
		path = above
	}
}
