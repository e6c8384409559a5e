package shard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/admission/apikinds"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/apibinding"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

func (s *accessRules) apiKinds() apikinds.Config {
	return apikinds.Config{PathOf: s.local.pathOf, Resolve: s.exportAt, Find: s.clusterAt, Current: s.current, MayBind: s.mayBind, Schema: s.schemaOf}
}

// current returns an error if this shard may lack exports or the rules about binding them. Both are replicated
// independently.
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

// exportAt resolves the path of an export to a logical cluster and reports whether the export may be bound there. On
// this shard that is true for any export, because admission checks its existence; on other shards only for replicated
// exports. A logical cluster of another shard can only be resolved if one of its exports is replicated. The lookups must
// be the same for exports that exist and for those that do not.
func (s *installation) exportAt(path logicalcluster.Path, export string) (cluster logicalcluster.Name, known bool, err error) {
	exports := s.informers.APIExports
	local, here := s.local.resolve(path)
	found, err := exports.ByIndex(apis.PathIndex, path.Join(export).String())
	others, otherErr := exports.ByIndex(apis.PathIndex, apis.AnyAt(path))
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

// mayBind reports whether the rules of a provider allow u to bind an export. An unreachable shard allows nothing beyond
// the replicated rules, because an error that names it would disclose that the export exists.
// If the replicated rules do not allow it, exactly one other shard receives a review in any case: the shard of the
// provider if it is known, otherwise a fixed other one. Therefore neither the response time nor an error discloses the
// shard or the existence of an export.
func (s *accessRules) mayBind(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error) {
	q := question{
		cluster: provider, verb: "bind", resource: apisv1alpha2.SchemeGroupVersion.WithResource("apiexports"), name: export,
	}
	may, err := s.reviews.may(ctx, u, q)
	if may || err != nil {
		return may, err
	}
	if may, err = s.reviewElsewhere(ctx, u, q); unreachable(err) {
		klog.FromContext(ctx).Info("Failed to review the binding of an APIExport on another shard", "err", err)
		return false, nil
	}
	return may, err
}

// reviewElsewhere sends a review to the shard of the provider. If the provider is local or unknown, it sends a decoy to another
// shard instead, which takes the same steps: the review of a random export in a logical cluster that exists on every
// shard.
func (s *accessRules) reviewElsewhere(ctx context.Context, u user.Info, q question) (bool, error) {
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
	schema, err := apibinding.ReadSchema(ctx, s.sources.Local, nil, client.Key{Cluster: cluster, Name: name})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // not found
	}
	return schema, err
}
