package shard

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/registry/core"
)

// accounts looks up the objects to which tokens of service accounts are bound, on this shard and on others.
type accounts struct {
	clients   *client.Factory
	informers *controllers.Informers
	remote    *serviceaccount.Remote
}

var _ serviceaccount.Accounts = &accounts{}

func newAccounts(local *client.Factory, informers *controllers.Informers, shards *peers.Book) *accounts {
	// It includes this shard, whose informer may not contain the logical cluster yet.
	remote := serviceaccount.NewRemote(func(logicalcluster.Name) ([]*peers.Peer, bool) { return shards.All() })
	return &accounts{clients: local, informers: informers, remote: remote}
}

func (a *accounts) ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error) {
	if !a.local(cluster) {
		return a.remote.ServiceAccount(ctx, cluster, namespace, name)
	}
	if account, err := a.informers.ServiceAccounts.Lister().Get(client.Key{Cluster: cluster, Namespace: namespace, Name: name}); err == nil {
		return account, nil
	}
	// The informer may lag behind the creation.
	return kinds.ServiceAccounts.InNamespace(a.clients.Cluster(cluster.Path()), namespace).Get(ctx, name, metav1.GetOptions{})
}

func (a *accounts) Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	if !a.local(cluster) {
		return a.remote.Secret(ctx, cluster, namespace, name)
	}
	if secret, err := a.informers.TokenSecrets.Lister().Get(client.Key{Cluster: cluster, Namespace: namespace, Name: name}); err == nil {
		return secret, nil
	}
	return kinds.Secrets.InNamespace(a.clients.Cluster(cluster.Path()), namespace).Get(ctx, name, metav1.GetOptions{})
}

// local reports whether the informer contains the logical cluster. A new one may be missing and is then read like that
// of another shard.
func (a *accounts) local(cluster logicalcluster.Name) bool {
	_, err := a.informers.LogicalClusters.Lister().Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return err == nil
}

func (s *requestAccess) identity() registry.Identity {
	identity := registry.Identity{Reviewer: s.authentication.Reviewer(), Audiences: s.authentication.Audiences}
	if issuer := s.authentication.Issuer; issuer != nil {
		identity.Tokens = core.Tokens{
			Issuer:      issuer,
			Audiences:   s.authentication.Audiences,
			MaxLifetime: s.options.Authentication.MaxTokenLifetime,
		}
	}
	return identity
}
