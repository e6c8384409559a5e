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
)

// apiKinds is what admission asks about exports and their bindings.
func (s *Server) apiKinds() apikinds.Config {
	return apikinds.Config{PathOf: s.local.pathOf, Resolve: s.exportCluster, Current: s.current, MayBind: s.mayBind, Schema: s.schemaOf}
}

// current returns an error as long as this shard may not know all exports and who may bind
// them: the rules of others are read apart from their exports.
func (s *Server) current() error {
	return cmp.Or(s.informers.APIExports.Current(), s.informers.RBAC.ClusterRoles.Current(), s.informers.RBAC.ClusterRoleBindings.Current())
}

// exportCluster returns the logical cluster that a path leads to: one of this shard,
// whatever it exports, or one of another shard that has the export.
func (s *Server) exportCluster(path logicalcluster.Path, export string) (logicalcluster.Name, error) {
	if name, ok := s.local.resolve(path); ok && s.local.has(name) {
		return name, nil
	}
	exports := s.informers.APIExports
	found, err := exports.ByIndex(apis.PathIndex, path.Join(export).String())
	if err != nil || len(found) == 0 {
		return "", cmp.Or(err, exports.Current())
	}
	return logicalcluster.From(found[0]), nil
}

// mayBind reports whether the rules of a provider let u bind an export, as far as can be
// told: a shard that is away permits nothing beyond what it has told before. Saying
// that it is away would tell everybody that the export exists.
//
// For the same reason another shard is asked about what this one denies, too: the
// time that an answer takes tells nobody where an export is, or whether it exists.
func (s *Server) mayBind(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error) {
	q := question{
		cluster: provider, verb: "bind", resource: apisv1alpha2.SchemeGroupVersion.WithResource("apiexports"), name: export,
	}
	if found, err := s.informers.APIExports.Get(provider, "", export); err == nil {
		q.shard = found.Annotations[request.ShardAnnotation]
	}
	may, err := s.reviews.may(ctx, u, q)
	if !may && err == nil && q.shard == "" {
		s.askAnyone(ctx, u, q)
	}
	if unreachable(err) {
		klog.FromContext(ctx).Info("Cannot ask the shard of an APIExport who may bind it", "shard", q.shard, "err", err)
		return false, nil
	}
	return may, err
}

// askAnyone asks another shard a question that it cannot answer.
func (s *Server) askAnyone(ctx context.Context, u user.Info, q question) {
	all, _ := s.peers.All()
	if all = all[1:]; len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b *peers.Peer) int { return strings.Compare(a.Name, b.Name) })
	hash := sha256.Sum256([]byte(q.cluster.String() + "|" + q.name))
	q.cluster = logicalcluster.Name(hex.EncodeToString(hash[:])) // there is no such logical cluster
	_, _ = s.reviews.ask(ctx, all[int(hash[0])%len(all)], u, q)
}

// schemaOf returns an APIResourceSchema of this shard, or nil if there is none.
func (s *Server) schemaOf(ctx context.Context, cluster logicalcluster.Name, name string) (*apis.APIResourceSchema, error) {
	schema, err := apibinding.ReadSchema(ctx, s.sources.Local, nil, client.Key{Cluster: cluster, Name: name})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	return schema, err
}
