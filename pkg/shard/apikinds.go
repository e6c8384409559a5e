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

// apiKinds is what admission asks about exports and their bindings.
func (s *accessRules) apiKinds() apikinds.Config {
	return apikinds.Config{PathOf: s.local.pathOf, Resolve: s.exportAt, Find: s.clusterAt, Current: s.current, MayBind: s.mayBind, Schema: s.schemaOf}
}

// current returns an error as long as this shard may not know all exports and who may bind
// them: the rules of others are read apart from their exports.
func (s *installation) current() error {
	return cmp.Or(s.informers.APIExports.Current(), s.informers.RBAC.ClusterRoles.Current(), s.informers.RBAC.ClusterRoleBindings.Current())
}

// exportCluster returns the logical cluster of an export by its path, or "" if there is none.
func (s *installation) exportCluster(path logicalcluster.Path, export string) (logicalcluster.Name, error) {
	cluster, known, err := s.exportAt(path, export)
	if !known {
		cluster = ""
	}
	return cluster, err
}

// exportAt returns the logical cluster that a path leads to, and whether an export can be bound
// there: any export of a logical cluster of this shard, and those that are known of other shards. A
// logical cluster of another shard is known if any of its exports is. The look-ups are the same
// whether the export exists or not.
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

// mayBind reports whether the rules of a provider let u bind an export, as far as is known: an
// unreachable shard permits nothing beyond what has been replicated. An error that names it
// would disclose that the export exists.
//
// What the replicated rules deny, one other shard is asked for, in all cases alike: the provider's
// if it is known, and otherwise another one. So neither the response time nor an error discloses
// where an export is, or whether it exists.
func (s *accessRules) mayBind(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error) {
	q := question{
		cluster: provider, verb: "bind", resource: apisv1alpha2.SchemeGroupVersion.WithResource("apiexports"), name: export,
	}
	may, err := s.reviews.may(ctx, u, q)
	if may || err != nil {
		return may, err
	}
	if may, err = s.askAbout(ctx, u, q); unreachable(err) {
		klog.FromContext(ctx).Info("Cannot ask another shard who may bind an APIExport", "err", err)
		return false, nil
	}
	return may, err
}

// askAbout asks the shard of a provider a question, or, if the provider is on this shard or
// unknown, another shard one that takes the same steps there: about a name that no export has, in
// a logical cluster that every shard has.
func (s *accessRules) askAbout(ctx context.Context, u user.Info, q question) (bool, error) {
	all, _ := s.peers.All()
	if all = all[1:]; len(all) == 0 {
		return false, nil
	}
	slices.SortFunc(all, func(a, b *peers.Peer) int { return strings.Compare(a.Name, b.Name) })
	hash := sha256.Sum256([]byte(q.cluster.String() + "|" + q.name))
	decoy, at := q, int(hash[0])%len(all)
	decoy.cluster, decoy.name = tenancy.AdminCluster, hex.EncodeToString(hash[:])
	// All exports of the provider: the one that is asked about need not exist.
	for _, export := range s.informers.APIExports.In(q.cluster) {
		q.shard = export.Annotations[request.ShardAnnotation]
	}
	theirs := slices.IndexFunc(all, func(p *peers.Peer) bool { return p.Name == q.shard })
	if theirs >= 0 && !s.local.has(q.cluster) {
		return s.reviews.ask(ctx, all[theirs], u, q)
	}
	_, err := s.reviews.ask(ctx, all[at], u, decoy)
	return false, err
}

// schemaOf returns an APIResourceSchema of this shard, or nil if there is none.
func (s *installation) schemaOf(ctx context.Context, cluster logicalcluster.Name, name string) (*apis.APIResourceSchema, error) {
	schema, err := apibinding.ReadSchema(ctx, s.sources.Local, nil, client.Key{Cluster: cluster, Name: name})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	return schema, err
}
