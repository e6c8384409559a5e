package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// sites keeps the access to the LogicalClusters of all shards: of the own one,
// and of every other one that is registered, which it watches for logical
// clusters whose owner is here.
type sites struct {
	self  string
	local *site
	peers *peers.Book

	mu     sync.Mutex
	remote map[string]*site
}

// at returns the access to a shard.
func (s *sites) at(shard string) (*site, error) {
	if shard == s.self {
		return s.local, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if remote, ok := s.remote[shard]; ok {
		return remote, nil
	}
	return nil, fmt.Errorf("%w: shard %q is not known yet", peers.ErrUnreachable, shard)
}

// watch is the reconcile.Source of what happens to logical clusters on other
// shards. It follows the registered shards.
func (s *sites) watch(ctx context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return s.peers.Follow(ctx, func(ctx context.Context, shard *peers.Peer) { s.follow(ctx, shard, queue) }), nil
}

// follow watches a shard for as long as it is there.
func (s *sites) follow(ctx context.Context, shard *peers.Peer, queue reconcile.Queue[client.Key]) {
	informer := kinds.LogicalClusters.Informer(shard.Clients.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Name:          "logicalclusters@" + shard.Name,
		LabelSelector: tenancy.OwnerShardLabel + "=" + s.self,
		Indexers:      map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{OwnerIndex: IndexByOwner},
	})
	informer.AddEventHandler(ownerHandler(queue))
	s.set(shard.Name, newSite(shard, informer))
	if err := informer.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Watching the logical clusters of a shard ended", "shard", shard.Name)
		<-ctx.Done() // what it has told still holds
	}
	s.set(shard.Name, nil)
	if errors.Is(context.Cause(ctx), peers.ErrMoved) {
		// Nobody will tell of what the shard does not hold at its new address.
		for _, lc := range informer.Lister().List(nil) {
			if key, ok := ownerOf(lc); ok {
				queue.Add(key)
			}
		}
	}
}

// set keeps the access to another shard; nil removes it.
func (s *sites) set(shard string, at *site) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remote == nil {
		s.remote = map[string]*site{}
	}
	if at == nil {
		delete(s.remote, shard)
	} else {
		s.remote[shard] = at
	}
}

// OwnerIndex is the index by owner that informers of LogicalClusters have.
const OwnerIndex = "owner"

// IndexByOwner is the function of OwnerIndex.
func IndexByOwner(lc *corev1alpha1.LogicalCluster) []string {
	key, ok := ownerOf(lc)
	if !ok {
		return nil
	}
	return []string{key.String()}
}

// ownerHandler queues the Workspaces that own LogicalClusters.
func ownerHandler(queue reconcile.Queue[client.Key]) client.Handler[*corev1alpha1.LogicalCluster] {
	enqueue := func(lc *corev1alpha1.LogicalCluster) {
		if key, ok := ownerOf(lc); ok {
			queue.Add(key)
		}
	}
	return client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(lc *corev1alpha1.LogicalCluster, _ bool) { enqueue(lc) },
		OnUpdate: func(_, lc *corev1alpha1.LogicalCluster) { enqueue(lc) },
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) { enqueue(last) },
	}
}

// ownerOf returns the key of the Workspace that owns a LogicalCluster.
func ownerOf(lc *corev1alpha1.LogicalCluster) (client.Key, bool) {
	owner := lc.Spec.Owner
	if owner == nil || owner.Resource != kinds.Workspaces.Resource || owner.APIVersion != tenancyv1alpha1.SchemeGroupVersion.String() {
		return client.Key{}, false
	}
	return client.Key{Cluster: logicalcluster.Name(owner.Cluster), Name: owner.Name}, true
}
