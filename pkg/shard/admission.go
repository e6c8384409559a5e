package shard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/admission/apikinds"
	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/apibinding"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

func (s *installation) apiKinds() apikinds.Config {
	return apikinds.Config{PathOf: s.local.pathOf, Resolve: s.exportAt, Find: s.clusterAt, Current: s.current, MayBind: s.mayBind, Schema: s.schemaOf}
}

// current returns an error if this shard may lack exports or the rules about binding them.
func (s *installation) current() error {
	return cmp.Or(s.informers.APIExports.Current(), s.informers.RBAC.ClusterRoles.Current(), s.informers.RBAC.ClusterRoleBindings.Current())
}

func (s *installation) exportCluster(path logicalcluster.Path, export string) (logicalcluster.Name, error) {
	cluster, known, err := s.exportAt(path, export)
	if !known {
		return "", err
	}
	return cluster, err
}

// exportAt resolves the path of an export to a logical cluster, on another shard only if one of its exports is
// replicated. known is set for any export of this shard, because admission checks its existence, and for replicated
// ones. The lookups must be the same for exports that exist and for those that do not.
func (s *installation) exportAt(path logicalcluster.Path, export string) (cluster logicalcluster.Name, known bool, err error) {
	exports := s.informers.APIExports
	local, here := s.local.resolve(path)
	found, err := exports.ByIndex(apis.PathIndex, path.Join(export).String())
	others, otherErr := exports.ByIndex(apis.PathIndex, apis.PathIndexKey(path))
	err = cmp.Or(err, otherErr, exports.Current())
	switch {
	case here && s.local.has(local):
		return local, true, nil
	case len(found) > 0:
		return logicalcluster.From(found[0]), true, nil
	case len(others) > 0:
		return logicalcluster.From(others[0]), false, err
	default:
		return "", false, err
	}
}

// mayBind reports whether the rules of a provider allow u to bind an export. Neither an error nor the response time may
// disclose the shard or the existence of an export. Therefore, an unreachable shard allows nothing beyond the
// replicated rules. If the replicated rules do not allow a binding, exactly one other shard receives a review, even if
// the provider does not exist.
func (s *installation) mayBind(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error) {
	q := accessReview{
		cluster: provider, verb: "bind", resource: apisv1alpha2.SchemeGroupVersion.WithResource("apiexports"), name: export,
	}
	may, err := s.reviews.may(ctx, u, q)
	if may || err != nil {
		return may, err
	}
	if may, err = s.reviewElsewhere(ctx, u, q); errors.Is(err, peers.ErrUnreachable) {
		klog.FromContext(ctx).Info("Failed to review the binding of an APIExport on another shard", "err", err)
		return false, nil
	}
	return may, err
}

// reviewElsewhere sends a review to the shard of the provider. If the provider is local or unknown, it sends a decoy to
// another shard. The decoy is a review of a nonexistent export in a logical cluster that exists on every shard. The
// other shard is always the same for an export.
func (s *installation) reviewElsewhere(ctx context.Context, u user.Info, q accessReview) (bool, error) {
	all, _ := s.peers.All()
	if all = all[1:]; len(all) == 0 {
		return false, nil
	}
	slices.SortFunc(all, func(a, b *peers.Peer) int { return strings.Compare(a.Name, b.Name) })
	hash := sha256.Sum256([]byte(q.cluster.String() + "|" + q.name))
	decoy, at := q, int(hash[0])%len(all)
	decoy.cluster, decoy.name = tenancy.AdminCluster, hex.EncodeToString(hash[:])
	// Any export of the provider, because the requested one may not exist.
	for _, export := range s.informers.APIExports.In(q.cluster) {
		q.shard = export.Annotations[request.ShardAnnotation]
	}
	theirs := slices.IndexFunc(all, func(p *peers.Peer) bool { return p.Name == q.shard })
	if theirs >= 0 && !s.local.has(q.cluster) {
		return s.reviews.remote(ctx, all[theirs], u, q)
	}
	_, err := s.reviews.remote(ctx, all[at], u, decoy)
	return false, err
}

func (s *installation) schemaOf(ctx context.Context, cluster logicalcluster.Name, name string) (*apis.APIResourceSchema, error) {
	return optional(apibinding.ReadSchema(ctx, s.sources.Local, nil, client.Key{Cluster: cluster, Name: name}))
}

// clusterAt resolves a path by the Workspaces of any shard, and returns "" if it does not exist. It returns
// client.ErrIncomplete if a shard does not respond.
func (s *installation) clusterAt(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error) {
	defer request.Pause(ctx)()
	first, rest, _ := strings.Cut(path.String(), ":")
	cluster := logicalcluster.Name(first)
	if rest == "" && !s.local.has(cluster) {
		_, found, err := readFromOthers(ctx, s, kinds.LogicalClusters, cluster, corev1alpha1.LogicalClusterName)
		if !found || err != nil {
			return "", err
		}
	}
	for rest != "" && cluster != "" {
		var name string
		name, rest, _ = strings.Cut(rest, ":")
		ws, err := s.workspaceIn(ctx, cluster, name)
		if ws == nil || err != nil {
			return "", err
		}
		cluster = logicalcluster.Name(ws.Spec.Cluster)
	}
	return cluster, nil
}

// workspaceIn returns a Workspace on any shard, or nil if it does not exist.
func (s *installation) workspaceIn(ctx context.Context, cluster logicalcluster.Name, name string) (*tenancyv1alpha1.Workspace, error) {
	if s.local.has(cluster) {
		return optional(s.informers.Workspaces.Lister().Cluster(cluster).Get("", name))
	}
	ws, found, err := readFromOthers(ctx, s, kinds.Workspaces, cluster, name)
	if !found {
		return nil, err
	}
	return ws, nil
}

// readFromOthers reads an object from the other shards, one after the other, until one has it.
func readFromOthers[T client.Object, L runtime.Object](
	ctx context.Context, s *installation, kind client.Resource[T, L], cluster logicalcluster.Name, name string,
) (object T, found bool, err error) {
	all, complete := s.peers.All()
	var failed error
	for _, peer := range all[1:] {
		err := peer.Do(ctx, reviewTimeout, func(ctx context.Context) (err error) {
			object, err = kind.In(peer.Clients.Cluster(cluster.Path())).Get(ctx, name, metav1.GetOptions{})
			return err
		})
		switch {
		case err == nil:
			return object, true, nil
		case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
			failed = errors.Join(failed, fmt.Errorf("%w: shard %s: %w", client.ErrIncomplete, peer.Name, err))
		}
	}
	if failed == nil && !complete {
		failed = fmt.Errorf("%w: not all shards are known", client.ErrIncomplete)
	}
	return object, false, failed
}

var workspaceTypes = tenancyv1alpha1.SchemeGroupVersion.WithResource("workspacetypes")

// typeTimeout limits how long the creation of a Workspace waits for its type.
const typeTimeout = 500 * time.Millisecond

func (s *installation) workspaceTypes() workspacetype.Config {
	types := s.informers.Types()
	return workspacetype.Config{
		May:      s.mayUseType,
		WouldSee: s.mayReadTypes,
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
func (s *installation) mayUseType(ctx context.Context, u user.Info, verb string, t *tenancyv1alpha1.WorkspaceType) (bool, error) {
	shard := t.Annotations[request.ShardAnnotation]
	if shard == "" && s.sources.Root != nil {
		shard = corev1alpha1.RootShard // types are read there without a cache server
	}
	may, err := s.reviews.may(ctx, u, accessReview{cluster: logicalcluster.From(t), shard: shard, verb: verb, resource: workspaceTypes, name: t.Name})
	if errors.Is(err, peers.ErrUnreachable) {
		klog.FromContext(ctx).Info("Failed to review the use of a WorkspaceType on its shard", "shard", shard, "err", err)
		return false, nil
	}
	return may, err
}

// mayReadTypes reports whether u may read types of this name in all logical clusters in which they would be searched.
// As in Opens, other shards receive no review.
func (s *installation) mayReadTypes(ctx context.Context, u user.Info, parent logicalcluster.Name, ref tenancyv1alpha1.WorkspaceTypeReference) bool {
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
		may, err := s.reviews.may(ctx, u, accessReview{cluster: cluster, verb: "get", resource: workspaceTypes, name: string(ref.Name)})
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
