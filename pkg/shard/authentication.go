package shard

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/request"
)

// accounts looks up the objects to which tokens of service accounts are bound, on this shard and on others.
// A logical cluster that the local informer does not contain yet is read like that of another shard.
type accounts struct {
	*installation
	remote *serviceaccount.Remote // includes this shard
}

func (s *installation) newAccounts() *accounts {
	return &accounts{s, serviceaccount.NewRemote(func(logicalcluster.Name) ([]*peers.Peer, bool) { return s.peers.All() })}
}

func (a *accounts) ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error) {
	if !a.local.has(cluster) {
		return a.remote.ServiceAccount(ctx, cluster, namespace, name)
	}
	if account, err := a.informers.ServiceAccounts.Lister().Get(client.Key{Cluster: cluster, Namespace: namespace, Name: name}); err == nil {
		return account, nil
	}
	// The informer may lag behind the creation.
	return kinds.ServiceAccounts.InNamespace(a.sources.Local.Cluster(cluster.Path()), namespace).Get(ctx, name, metav1.GetOptions{})
}

func (a *accounts) Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	if !a.local.has(cluster) {
		return a.remote.Secret(ctx, cluster, namespace, name)
	}
	if secret, err := a.informers.TokenSecrets.Lister().Get(client.Key{Cluster: cluster, Namespace: namespace, Name: name}); err == nil {
		return secret, nil
	}
	return kinds.Secrets.InNamespace(a.sources.Local.Cluster(cluster.Path()), namespace).Get(ctx, name, metav1.GetOptions{})
}

// workspaceOf returns the logical cluster of ctx and the authentication configurations of its type, not extended ones.
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

// recordIssuerFault records an Event about an invalid configuration of this shard. Other shards record their own.
func (s *installation) recordIssuerFault(ctx context.Context, of *issuers.Configuration, fault string) error {
	cluster := logicalcluster.From(of)
	if !s.local.has(cluster) {
		return nil
	}
	return events.Record(ctx, s.sources.Local.Cluster(cluster.Path()), events.Event{
		About: issuers.Reference(of), Component: issuers.Component, Type: corev1.EventTypeWarning, Reason: issuers.Reason, Message: fault,
	}, fault)
}
