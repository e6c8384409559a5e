package workspace

import (
	"context"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// requesters watches the other shards for Workspaces with logical clusters on this shard.
type requesters struct {
	self     string
	peers    *peers.Book
	clusters client.Lister[*corev1alpha1.LogicalCluster]
	remote   shardMap[requestingShard]
}

type requestingShard struct {
	*peers.Peer
	informer *client.Informer[*tenancyv1alpha1.Workspace]
}

func (s *requestingShard) cached(key client.Key) (*tenancyv1alpha1.Workspace, bool) {
	key.Shard = ""
	ws, err := s.informer.Lister().Get(key)
	return ws, err == nil
}

func (s *requestingShard) live(ctx context.Context, key client.Key) (ws *tenancyv1alpha1.Workspace, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		ws, err = live(ctx, s.Clients, key)
		return err
	})
	return ws, err
}

// at returns a shard after its requests have been listed completely.
func (a *requesters) at(shard string) (*requestingShard, bool) {
	s := a.remote.get(shard)
	return s, s != nil && s.informer.HasSynced()
}

// owned returns the LogicalClusters of this shard that belong to a Workspace of another shard.
func (a *requesters) owned(key client.Key) (found []*corev1alpha1.LogicalCluster) {
	shard := key.Shard
	key.Shard = ""
	all, _ := a.clusters.ByIndex(OwnerIndex, key.String()) // fails only if the index does not exist
	for _, lc := range all {
		if lc.Labels[tenancy.OwnerShardLabel] == shard {
			found = append(found, lc)
		}
	}
	return found
}

// watch is a reconcile.Source of the requests of all registered shards.
func (a *requesters) watch(ctx context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return a.peers.Follow(ctx, func(ctx context.Context, shard *peers.Peer) { a.follow(ctx, shard, queue) }), nil
}

func (a *requesters) follow(ctx context.Context, shard *peers.Peer, queue reconcile.Queue[client.Key]) {
	informer := kinds.Workspaces.Informer(shard.Clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.Workspace]{
		Name: "workspaces@" + shard.Name, LabelSelector: tenancy.TargetLabel + "=" + a.self, Transform: slimWorkspace,
	})
	informer.AddEventHandler(informer.KeyHandler(func(key client.Key) {
		key.Shard = shard.Name
		queue.Add(key)
	}))
	a.remote.set(shard.Name, &requestingShard{Peer: shard, informer: informer})
	defer a.remote.set(shard.Name, nil)
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() {
		if informer.WaitForSync(ctx) != nil {
			return // ctx is done
		}
		// A LogicalCluster may have lost its Workspace without an event. Requests that arrived before the informer had
		// synced were not processed.
		for _, lc := range a.clusters.List(nil) {
			if key, ok := requesterOf(lc, a.self); ok && key.Shard == shard.Name {
				queue.Add(key)
			}
		}
		for _, ws := range informer.Lister().List(nil) {
			queue.Add(client.Key{Shard: shard.Name, Cluster: logicalcluster.From(ws), Name: ws.Name})
		}
	})
	if err := informer.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Stopped watching the workspaces of a shard", "shard", shard.Name)
		<-ctx.Done()
	}
}

// slimWorkspace keeps the fields that placement needs, because there may be many Workspaces.
func slimWorkspace(ws *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
	return &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{
			Name: ws.Name, UID: ws.UID, ResourceVersion: ws.ResourceVersion, DeletionTimestamp: ws.DeletionTimestamp,
			Annotations: map[string]string{
				logicalcluster.AnnotationKey: ws.Annotations[logicalcluster.AnnotationKey],
				tenancy.ClusterAnnotation:    ws.Annotations[tenancy.ClusterAnnotation],
			},
		},
		Status: tenancyv1alpha1.WorkspaceStatus{Phase: ws.Status.Phase},
	}, nil
}

// requesterOf returns the key of the Workspace on another shard that owns a LogicalCluster.
func requesterOf(lc *corev1alpha1.LogicalCluster, self string) (client.Key, bool) {
	key, ok := ownerOf(lc)
	key.Shard = lc.Labels[tenancy.OwnerShardLabel]
	return key, ok && key.Shard != "" && key.Shard != self
}
