package shard

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/request"
)

// workspaceOf returns the logical cluster of ctx and the authentication configurations of its type. Those of extended types
// do not count.
func (s *installation) workspaceOf(ctx context.Context) authn.Workspace {
	scope := request.ScopeFrom(ctx)
	lc := s.local.get(scope.Cluster.Name)
	if scope.VirtualWorkspace != nil || lc == nil {
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
		w.Name(c)
	}
	return w
}

// recordIssuerFault records an Event about an invalid configuration of this shard. Shards do not write to other shards; those
// record their own Events.
func (s *installation) recordIssuerFault(ctx context.Context, of *issuers.Configuration, fault string) error {
	cluster := logicalcluster.From(of)
	if !s.local.has(cluster) {
		return nil
	}
	return events.Record(ctx, s.sources.Local.Cluster(cluster.Path()), events.Event{
		About: issuers.Reference(of), Component: issuers.Component, Type: corev1.EventTypeWarning, Reason: issuers.Reason, Message: fault,
	}, fault)
}
