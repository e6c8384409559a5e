package shard

import (
	"cmp"
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
)

// knownIn returns the logical cluster of ctx and the issuers that its type names, in the
// logical cluster of the type. What the type extends names none.
func (s *Server) knownIn(ctx context.Context) authn.Workspace {
	scope := request.ScopeFrom(ctx)
	lc := s.local.get(scope.Cluster.Name)
	if scope.View != nil || lc == nil {
		return authn.Workspace{}
	}
	w := authn.Workspace{Cluster: scope.Cluster.Name}
	isNew := time.Since(lc.CreationTimestamp.Time) < authn.NewFor
	t, err := s.informers.Types().Itself(lc)
	if err != nil || t.WorkspaceType == nil {
		w.Incomplete = err != nil && isNew
		return w
	}
	for _, ref := range t.Spec.AuthenticationConfigurations {
		c, err := s.informers.AuthenticationConfigurations.Get(logicalcluster.From(t.WorkspaceType), "", ref.Name)
		if err != nil {
			w.Incomplete = w.Incomplete || isNew
			continue
		}
		w.Configurations = append(w.Configurations, c)
	}
	return w
}

// tellOfIssuer has an Event say what is wrong with a configuration, on the shard that has it.
func (s *Server) tellOfIssuer(ctx context.Context, of *issuers.Configuration, fault string) error {
	cluster, clients := logicalcluster.From(of), s.sources.Local
	if !s.local.has(cluster) {
		// Without a cache server it has been read in root.
		peer := s.peers.Named(cmp.Or(of.Annotations[request.ShardAnnotation], corev1alpha1.RootShard))
		if peer == nil {
			return nil // the shard is none of the installation any more
		}
		clients = peer.Clients
	}
	return reconcile.Tell(ctx, clients.Cluster(cluster.Path()), reconcile.Event{
		About: issuers.Reference(of), Component: issuers.Component, Type: corev1.EventTypeWarning, Reason: issuers.Reason, Message: fault,
	}, fault)
}
