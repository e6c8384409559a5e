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

// askers keeps the other shards, each of which it watches for Workspaces whose logical
// clusters are to be here.
type askers struct {
	self     string
	peers    *peers.Book
	clusters client.Lister[*corev1alpha1.LogicalCluster]

	mu     sync.Mutex
	remote map[string]*askingShard
}

// askingShard is one of them.
type askingShard struct {
	*peers.Peer
	informer *client.Informer[*tenancyv1alpha1.Workspace]
}

// cached implements asker.
func (s *askingShard) cached(key client.Key) (*tenancyv1alpha1.Workspace, bool) {
	key.Shard = ""
	ws, err := s.informer.Lister().Get(key)
	return ws, err == nil
}

// live implements asker.
func (s *askingShard) live(ctx context.Context, key client.Key) (ws *tenancyv1alpha1.Workspace, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		ws, err = live(ctx, s.Clients, key)
		return err
	})
	return ws, err
}

// at returns a shard of which all is known that it asks for.
func (a *askers) at(shard string) (*askingShard, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.remote[shard]
	return s, s != nil && s.informer.HasSynced()
}

// owned returns the LogicalClusters of this shard whose owner has a key.
func (a *askers) owned(key client.Key) (found []*corev1alpha1.LogicalCluster) {
	shard := key.Shard
	key.Shard = ""
	// The index fails only where it does not exist.
	all, _ := a.clusters.ByIndex(OwnerIndex, key.String())
	for _, lc := range all {
		if lc.Labels[tenancy.OwnerShardLabel] == shard {
			found = append(found, lc)
		}
	}
	return found
}

// watch is the reconcile.Source of what other shards ask for. It follows the registered
// shards.
func (a *askers) watch(ctx context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return a.peers.Follow(ctx, func(ctx context.Context, shard *peers.Peer) { a.follow(ctx, shard, queue) }), nil
}

// follow watches a shard for as long as it is there.
func (a *askers) follow(ctx context.Context, shard *peers.Peer, queue reconcile.Queue[client.Key]) {
	informer := kinds.Workspaces.Informer(shard.Clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.Workspace]{
		Name:          "workspaces@" + shard.Name,
		LabelSelector: tenancy.TargetLabel + "=" + a.self,
		Transform:     slimWorkspace,
	})
	informer.AddEventHandler(informer.KeyHandler(func(key client.Key) {
		key.Shard = shard.Name
		queue.Add(key)
	}))
	a.set(shard.Name, &askingShard{Peer: shard, informer: informer})
	defer a.set(shard.Name, nil)
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() {
		if informer.WaitForSync(ctx) != nil {
			return // ctx is done
		}
		// What was created for it may have lost its Workspace, of which no event tells; and
		// what has told of itself before was not looked at.
		for _, lc := range a.clusters.List(nil) {
			if key, ok := askerOf(lc, a.self); ok && key.Shard == shard.Name {
				queue.Add(key)
			}
		}
		for _, ws := range informer.Lister().List(nil) {
			queue.Add(client.Key{Shard: shard.Name, Cluster: logicalcluster.From(ws), Name: ws.Name})
		}
	})
	if err := informer.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Watching the workspaces of a shard ended", "shard", shard.Name)
		<-ctx.Done()
	}
}

// set keeps another shard; nil removes it.
func (a *askers) set(shard string, s *askingShard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.remote == nil {
		a.remote = map[string]*askingShard{}
	}
	if s == nil {
		delete(a.remote, shard)
	} else {
		a.remote[shard] = s
	}
}

// slimWorkspace keeps what shows that a logical cluster is asked for, is to be deleted or
// has lost its Workspace. There may be many.
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

// askerOf returns the key of the Workspace on another shard than self that owns a
// LogicalCluster.
func askerOf(lc *corev1alpha1.LogicalCluster, self string) (client.Key, bool) {
	key, ok := ownerOf(lc)
	key.Shard = lc.Labels[tenancy.OwnerShardLabel]
	return key, ok && key.Shard != "" && key.Shard != self
}
