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

// typeTimeout is how long a Workspace waits for a type that is not known yet.
const typeTimeout = 500 * time.Millisecond

// workspaceTypes is what admission asks about the types of new Workspaces.
func (s *accessRules) workspaceTypes() workspacetype.Config {
	types := s.informers.Types()
	return workspacetype.Config{
		May:      s.mayDo,
		WouldSee: s.wouldSee,
		Timeout:  typeTimeout,
		Types: func(ctx context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
			lc, err := s.local.find(ctx, parent)
			if err != nil {
				return nil, err
			}
			if lc == nil {
				return nil, fmt.Errorf("logical cluster %q is not here", parent)
			}
			found, err := types.Allowed(ws, lc)
			if incomplete := s.informers.TypesComplete(); err != nil && len(found) == 0 && incomplete != nil {
				return nil, incomplete // it may exist
			}
			return found, err
		},
	}
}

// mayDo reports whether the rules of a type's logical cluster let u do something with it, as far as
// is known. As for exports (mayBind), an unreachable shard permits nothing beyond what has been
// replicated: an error would disclose that the type exists.
func (s *accessRules) mayDo(ctx context.Context, u user.Info, verb string, t *tenancyv1alpha1.WorkspaceType) (bool, error) {
	shard := t.Annotations[request.ShardAnnotation]
	if shard == "" && s.sources.Root != nil {
		shard = corev1alpha1.RootShard // without a cache server types are read there
	}
	may, err := s.reviews.may(ctx, u, question{cluster: logicalcluster.From(t), shard: shard, verb: verb, resource: workspaceTypes, name: t.Name})
	if unreachable(err) {
		klog.FromContext(ctx).Info("Cannot ask the shard of a WorkspaceType who may use it", "shard", shard, "err", err)
		return false, nil
	}
	return may, err
}

// wouldSee reports whether u may read types of that name wherever one would be looked for.
// Other shards are not asked: time would tell where a logical cluster is.
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
