package workspace

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
)

// logicalClusters is the access to the LogicalClusters of one shard.
type logicalClusters interface {
	// isRemote reports whether this is another shard, which creates and deletes them itself.
	isRemote() bool
	cached(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool)
	get(ctx context.Context, cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)
	create(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error
	remove(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error
	unused(ctx context.Context, cluster logicalcluster.Name) (bool, error)
}

// requestTimeout bounds a request to a shard.
const requestTimeout = 10 * time.Second

// site is the access to the LogicalClusters of one shard.
type site struct {
	*peers.Peer
	lister client.Lister[*corev1alpha1.LogicalCluster]
	// remote is set if it is another shard, which creates and deletes them itself.
	remote bool
}

func newSite(peer *peers.Peer, informer *client.Informer[*corev1alpha1.LogicalCluster]) *site {
	return &site{Peer: peer, lister: informer.Lister(), remote: true}
}

func localSite(book *peers.Book, self string, informer *client.Informer[*corev1alpha1.LogicalCluster]) *site {
	return &site{Peer: book.Named(self), lister: informer.Lister()}
}

// isRemote reports whether this is another shard, which creates and deletes LogicalClusters itself.
func (s *site) isRemote() bool { return s.remote }

// cached returns what the watch has told about the LogicalCluster in cluster.
func (s *site) cached(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
	lc, err := s.lister.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return lc, err == nil
}

// get asks the shard for the LogicalCluster in cluster.
func (s *site) get(ctx context.Context, cluster logicalcluster.Name) (lc *corev1alpha1.LogicalCluster, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		lc, err = s.client(cluster).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		return err
	})
	return lc, err
}

// create creates the LogicalCluster in cluster.
func (s *site) create(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	return s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		_, err := s.client(cluster).Create(ctx, lc, metav1.CreateOptions{})
		return err
	})
}

// remove deletes the LogicalCluster, if it is still the one given.
func (s *site) remove(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	return s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		err := s.client(cluster).Delete(ctx, lc.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(lc.UID))})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (s *site) client(cluster logicalcluster.Name) *client.Client[*corev1alpha1.LogicalCluster, *corev1alpha1.LogicalClusterList] {
	return kinds.LogicalClusters.In(s.Clients.Cluster(cluster.Path()))
}
