package namespace

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
)

// Name is the name of the controller.
const Name = "namespace"

const workers = 4

// Config configures the controller. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local      *client.Factory
	Namespaces *client.Informer[*corev1.Namespace]
	// LogicalClusters identifies logical clusters that are being deleted, which delete the content of all of their namespaces.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Stored selects the content to delete.
	Stored purge.Stored
}

// quietPeriod is the duration of the deletion of a logical cluster after which its namespaces are deleted, and report the remaining
// content, individually.
const quietPeriod = 10 * time.Second

// NewNamespaceController returns the controller.
func NewNamespaceController(config Config) *reconcile.Controller[client.Key] {
	namespaces, clusters := config.Namespaces.Lister(), config.LogicalClusters.Lister()
	r := &namespaceReconciler{
		now: time.Now, get: namespaces.Get,
		isEmptied: func(cluster logicalcluster.Name) bool {
			lc, err := clusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
			return err == nil && lc.DeletionTimestamp != nil && lc.Status.Phase == corev1alpha1.LogicalClusterPhaseDeleting
		},
		live: func(ctx context.Context, key client.Key) (*corev1.Namespace, error) {
			return kinds.Namespaces.In(config.Local.Cluster(key.Cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
		},
		empty: func(ctx context.Context, key client.Key) round { return empty(ctx, config, key) },
		status: func(ctx context.Context, old, updated *corev1.Namespace) error {
			_, err := reconcile.Commit(ctx, kinds.Namespaces.In(config.Local.Cluster(client.KeyOf(old).Cluster.Path())), old, updated)
			return err
		},
		finalize: func(ctx context.Context, ns *corev1.Namespace) error {
			return purge.Finalize(ctx, kinds.Namespaces.In(config.Local.Cluster(client.KeyOf(ns).Cluster.Path())), ns)
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile, Workers: workers,
		Sources: []reconcile.Source[client.Key]{
			reconcile.FromInformer(config.Namespaces, func(ns *corev1.Namespace) []client.Key {
				if !needsEmptying(ns) {
					return nil
				}
				return []client.Key{client.KeyOf(ns)}
			}),
		},
	})
}

type namespaceReconciler struct {
	now       func() time.Time
	get       func(key client.Key) (*corev1.Namespace, error)
	isEmptied func(cluster logicalcluster.Name) bool // whether the logical cluster deletes the content
	live      func(ctx context.Context, key client.Key) (*corev1.Namespace, error)
	empty     func(ctx context.Context, key client.Key) round
	status    func(ctx context.Context, old, updated *corev1.Namespace) error
	finalize  func(ctx context.Context, ns *corev1.Namespace) error
}

func (r *namespaceReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.get(key)
	if err != nil || !needsEmptying(cached) {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	if wait := quietPeriod - r.now().Sub(cached.DeletionTimestamp.Time); wait > 0 && r.isEmptied(key.Cluster) {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	// The informer may be behind: the namespace may have been replaced by another one. Its content must not be deleted.
	ns, err := r.live(ctx, key)
	if err != nil || !needsEmptying(ns) {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	result := r.empty(ctx, key)
	if result.done() {
		return reconcile.Result{}, reconcile.IgnoreNotFound(r.finalize(ctx, withoutFinalizer(ns)))
	}
	if err := reconcile.IgnoreNotFound(r.status(ctx, ns, report(ns, result, metav1.Now()))); err != nil {
		return reconcile.Result{}, err
	}
	// There are no events for the removal of finalizers of the content.
	return reconcile.Result{Backoff: true}, errors.Join(result.discovery, result.Err)
}

func empty(ctx context.Context, config Config, key client.Key) round {
	scope := config.Local.Cluster(key.Cluster.Path())
	discovery, err := documents.Of(scope)
	if err != nil {
		return round{discovery: err}
	}
	metadata, err := scope.Metadata()
	if err != nil {
		return round{discovery: err}
	}
	resources, err := purge.Discover(ctx, discovery)
	resources = slices.DeleteFunc(resources, func(r purge.Resource) bool { return !r.Namespaced })
	return round{discovery: err, Outcome: purge.Delete(ctx, metadata, config.Stored.In(key.Cluster, key.Name), resources, key.Name)}
}
