package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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

// sites gives access to the LogicalClusters of all registered shards. It watches the other shards for LogicalClusters of local
// Workspaces.
type sites struct {
	self   string
	local  *site
	peers  *peers.Book
	remote shardMap[site]
}

func (s *sites) at(shard string) (logicalClusters, error) {
	if shard == s.self {
		return s.local, nil
	}
	if remote := s.remote.get(shard); remote != nil {
		return remote, nil
	}
	return nil, fmt.Errorf("%w: shard %q has not been observed yet", peers.ErrUnreachable, shard)
}

// watch is a reconcile.Source of the LogicalClusters on other shards. It follows the registered shards.
func (s *sites) watch(ctx context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return s.peers.Follow(ctx, func(ctx context.Context, shard *peers.Peer) { s.follow(ctx, shard, queue) }), nil
}

func (s *sites) follow(ctx context.Context, shard *peers.Peer, queue reconcile.Queue[client.Key]) {
	informer := kinds.LogicalClusters.Informer(shard.Clients.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Name: "logicalclusters@" + shard.Name, LabelSelector: tenancy.OwnerShardLabel + "=" + s.self,
		Indexers: map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{OwnerIndex: IndexByOwner},
	})
	informer.AddEventHandler(ownerHandler(queue))
	s.remote.set(shard.Name, newSite(shard, informer))
	if err := informer.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Stopped watching the logical clusters of a shard", "shard", shard.Name)
		<-ctx.Done() // the observed state is still valid
	}
	s.remote.set(shard.Name, nil)
	if errors.Is(context.Cause(ctx), peers.ErrMoved) {
		// There are no events for LogicalClusters that do not exist at the new address.
		for _, lc := range informer.Lister().List(nil) {
			for _, key := range ownersOf(lc) {
				queue.Add(key)
			}
		}
	}
}

type shardMap[T any] struct {
	mu sync.Mutex
	by map[string]*T
}

func (m *shardMap[T]) get(shard string) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.by[shard]
}

// set replaces the value of a shard; nil removes it.
func (m *shardMap[T]) set(shard string, value *T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if value == nil {
		delete(m.by, shard)
		return
	}
	if m.by == nil {
		m.by = map[string]*T{}
	}
	m.by[shard] = value
}

// OwnerIndex is the index of LogicalClusters by owner.
const OwnerIndex = "owner"

// IndexByOwner is the index function of OwnerIndex.
func IndexByOwner(lc *corev1alpha1.LogicalCluster) []string {
	key, ok := ownerOf(lc)
	if !ok {
		return nil
	}
	return []string{key.String()}
}

func ownerHandler(queue reconcile.Queue[client.Key]) client.Handler[*corev1alpha1.LogicalCluster] {
	enqueue := func(lc *corev1alpha1.LogicalCluster) {
		for _, key := range ownersOf(lc) {
			queue.Add(key)
		}
	}
	return client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(lc *corev1alpha1.LogicalCluster, _ bool) { enqueue(lc) },
		OnUpdate: func(_, lc *corev1alpha1.LogicalCluster) { enqueue(lc) },
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) { enqueue(last) },
	}
}

// ownersOf returns the key of the Workspace that owns a LogicalCluster, if any.
func ownersOf(lc *corev1alpha1.LogicalCluster) []client.Key {
	if key, ok := ownerOf(lc); ok {
		return []client.Key{key}
	}
	return nil
}

func ownerOf(lc *corev1alpha1.LogicalCluster) (client.Key, bool) {
	owner := lc.Spec.Owner
	if owner == nil || owner.Resource != kinds.Workspaces.Resource || owner.APIVersion != tenancyv1alpha1.SchemeGroupVersion.String() {
		return client.Key{}, false
	}
	return client.Key{Cluster: logicalcluster.Name(owner.Cluster), Name: owner.Name}, true
}

type logicalClusters interface {
	// isRemote reports whether this is another shard, which creates and deletes LogicalClusters itself.
	isRemote() bool
	cached(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool)
	get(ctx context.Context, cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)
	create(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error
	remove(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error
	unused(ctx context.Context, cluster logicalcluster.Name) (bool, error)
}

const requestTimeout = 10 * time.Second

type site struct {
	*peers.Peer
	lister client.Lister[*corev1alpha1.LogicalCluster]
	remote bool
}

func newSite(peer *peers.Peer, informer *client.Informer[*corev1alpha1.LogicalCluster]) *site {
	return &site{Peer: peer, lister: informer.Lister(), remote: true}
}

func localSite(book *peers.Book, self string, informer *client.Informer[*corev1alpha1.LogicalCluster]) *site {
	return &site{Peer: book.Named(self), lister: informer.Lister()}
}

func (s *site) isRemote() bool { return s.remote }

func (s *site) cached(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
	lc, err := s.lister.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return lc, err == nil
}

func (s *site) get(ctx context.Context, cluster logicalcluster.Name) (lc *corev1alpha1.LogicalCluster, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		lc, err = s.client(cluster).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		return err
	})
	return lc, err
}

func (s *site) create(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	return s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		_, err := s.client(cluster).Create(ctx, lc, metav1.CreateOptions{})
		return err
	})
}

func (s *site) remove(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	return s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(lc.UID))}
		return reconcile.IgnoreNotFound(s.client(cluster).Delete(ctx, lc.Name, options))
	})
}

func (s *site) client(cluster logicalcluster.Name) *client.Client[*corev1alpha1.LogicalCluster, *corev1alpha1.LogicalClusterList] {
	return kinds.LogicalClusters.In(s.Clients.Cluster(cluster.Path()))
}
