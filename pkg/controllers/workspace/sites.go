package workspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// sites gives access to the LogicalClusters of all shards. On other shards, it watches only the LogicalClusters
// of local Workspaces.
type sites struct {
	self   string
	local  *site
	peers  *peers.Book
	remote table[site]
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
	_, _ = reconcile.FromInformer(informer, ownersOf)(ctx, queue) // never fails
	s.remote.Store(shard.Name, &site{Peer: shard, lister: informer.Lister(), remote: true})
	if err := informer.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Stopped watching the logical clusters of a shard", "shard", shard.Name)
		<-ctx.Done() // the observed state is still valid
	}
	s.remote.Delete(shard.Name)
	if errors.Is(context.Cause(ctx), peers.ErrMoved) {
		// There are no events for LogicalClusters that do not exist at the new address.
		for _, lc := range informer.Lister().List(nil) {
			for _, key := range ownersOf(lc) {
				queue.Add(key)
			}
		}
	}
}

type table[T any] struct{ sync.Map }

func (m *table[T]) get(key any) *T {
	value, _ := m.Load(key)
	typed, _ := value.(*T)
	return typed
}

// OwnerIndex is the index of LogicalClusters by owner.
const OwnerIndex = "owner"

// IndexByOwner is the index function of OwnerIndex.
func IndexByOwner(lc *corev1alpha1.LogicalCluster) []string {
	if key, ok := ownerOf(lc); ok {
		return []string{key.String()}
	}
	return nil
}

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

// orphanAge is the maximum age of an orphan to delete. An older one is probably a sign of data loss on this shard.
const orphanAge = 24 * time.Hour

var initialObjects = map[schema.GroupResource][]string{
	kinds.LogicalClusters.GroupResource():     {corev1alpha1.LogicalClusterName},
	kinds.Namespaces.GroupResource():          {metav1.NamespaceDefault, metav1.NamespaceSystem},
	kinds.ServiceAccounts.GroupResource():     {"default"},
	kinds.ConfigMaps.GroupResource():          {"kube-root-ca.crt"},
	kinds.ClusterRoleBindings.GroupResource(): {tenancy.OwnerBinding},
}

const maxInitialObjects = 2

// remove deletes the LogicalClusters of deleted Workspaces with a key, and counts those that are retained. exists reads the Workspace.
func (o *orphans) remove(ctx context.Context, key client.Key, localClusters logicalClusters, all []*corev1alpha1.LogicalCluster, now time.Time, exists func(context.Context, types.UID) (bool, error)) error {
	kept := 0
	for _, lc := range all {
		if lc.DeletionTimestamp != nil {
			continue
		}
		stays, err := removeOrphan(ctx, key, localClusters, lc, now, exists)
		if err != nil {
			return fmt.Errorf("logical cluster %s, whose workspace %s does not exist: %w", logicalcluster.From(lc), key, err)
		}
		if stays {
			kept++
		}
	}
	o.note(key, kept)
	return nil
}

func removeOrphan(ctx context.Context, key client.Key, localClusters logicalClusters, seen *corev1alpha1.LogicalCluster, now time.Time, exists func(context.Context, types.UID) (bool, error)) (kept bool, err error) {
	cluster := logicalcluster.From(seen)
	lc, err := localClusters.get(ctx, cluster)
	if apierrors.IsNotFound(err) || err == nil && (lc.UID != seen.UID || lc.DeletionTimestamp != nil) {
		return false, nil // the watch will report it
	}
	if err != nil {
		return false, err
	}
	if found, err := exists(ctx, lc.Spec.Owner.UID); err != nil || found {
		return false, err
	}
	logger := klog.FromContext(ctx).WithValues("logicalCluster", cluster, "owner", key.String(), "ownerUID", lc.Spec.Owner.UID)
	if age := now.Sub(lc.CreationTimestamp.Time); age > orphanAge {
		logger.Info("Retaining a logical cluster without a Workspace because of its age: delete its LogicalCluster, or restore the Workspace", "age", age)
		return true, nil
	}
	unused, err := localClusters.unused(ctx, cluster)
	if err != nil {
		return false, err
	}
	if !unused {
		logger.Info("Retaining a logical cluster without a Workspace because it is not empty: delete its LogicalCluster, or restore the Workspace")
		return true, nil
	}
	logger.Info("Deleting a logical cluster that was created after its Workspace was deleted")
	return false, localClusters.remove(ctx, cluster, lc)
}

// unused reports whether a logical cluster contains only initial objects.
func (s *site) unused(ctx context.Context, cluster logicalcluster.Name) (unused bool, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		unused, err = isEmpty(ctx, s.Clients.Cluster(cluster.Path()))
		return err
	})
	return unused, err
}

func isEmpty(ctx context.Context, scope client.Scope) (bool, error) {
	discovery, err := documents.Of(scope)
	metadata, metadataErr := scope.Metadata()
	if err := errors.Join(err, metadataErr); err != nil {
		return false, err
	}
	resources, err := purge.Discover(ctx, discovery)
	if err != nil {
		return false, err
	}
	for _, resource := range resources {
		if resource.GroupResource() == kinds.APIBindings.GroupResource() {
			continue // created by types; their resources are listed
		}
		page, err := metadata.Resource(resource.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: maxInitialObjects + 1})
		if err != nil {
			return false, fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
		}
		if !isInitial(resource.GroupResource(), page) {
			return false, nil
		}
	}
	return true, nil
}

func isInitial(resource schema.GroupResource, page *metav1.PartialObjectMetadataList) bool {
	others := slices.ContainsFunc(page.Items, func(item metav1.PartialObjectMetadata) bool {
		return !slices.Contains(initialObjects[resource], item.Name)
	})
	return !others && page.Continue == ""
}

func newOrphans(registerer prometheus.Registerer) *orphans {
	return &orphans{count: map[client.Key]int{}, gauge: instruments.NewGauge(registerer, "shardplane_workspace_orphaned_logical_clusters",
		"Logical clusters without a Workspace that are not deleted because they are old or not empty. Only on the leader of their shard.")}
}

// orphans counts the retained logical clusters by the key of the Workspace, for both controllers.
type orphans struct {
	gauge prometheus.Gauge

	mu    sync.Mutex
	count map[client.Key]int
}

func (o *orphans) note(key client.Key, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gauge.Add(float64(n - o.count[key]))
	o.count[key] = n
	if n == 0 {
		delete(o.count, key)
	}
}
