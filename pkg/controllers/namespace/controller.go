package namespace

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Config is what the controller needs.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Namespaces are those of all logical clusters of the shard.
	Namespaces *client.Informer[*corev1.Namespace]
	// LogicalClusters are theirs: one that is being deleted empties all of its namespaces at
	// once, and lets them go.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Stored says what is to be deleted.
	Stored purge.Stored
}

// unremarkable is how long the deletion of a logical cluster may take before a namespace of it
// is emptied, and says what it waits for, by itself.
const unremarkable = 10 * time.Second

// New returns the controller.
func New(config Config) *reconcile.Controller[client.Key] {
	namespaces, clusters := config.Namespaces.Lister(), config.LogicalClusters.Lister()
	r := &reconciler{
		now: time.Now,
		get: namespaces.Get,
		isEmptied: func(cluster logicalcluster.Name) bool {
			lc, err := clusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
			return err == nil && lc.DeletionTimestamp != nil && lc.Status.Phase == corev1alpha1.LogicalClusterPhaseDeleting
		},
		live: func(ctx context.Context, key client.Key) (*corev1.Namespace, error) {
			return kinds.Namespaces.In(config.Local.Cluster(key.Cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
		},
		empty: func(ctx context.Context, key client.Key) round { return empty(ctx, config, key) },
		status: func(ctx context.Context, old, updated *corev1.Namespace) error {
			return commit(ctx, config.Local, old, updated)
		},
		finalize: func(ctx context.Context, ns *corev1.Namespace) error {
			return purge.Finalize(ctx, kinds.Namespaces.In(config.Local.Cluster(client.KeyOf(ns).Cluster.Path())), ns)
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      Name,
		Reconcile: r.reconcile,
		Workers:   workers,
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

type reconciler struct {
	now func() time.Time
	get func(key client.Key) (*corev1.Namespace, error)
	// isEmptied reports whether a logical cluster is being emptied as a whole.
	isEmptied func(cluster logicalcluster.Name) bool
	// live is get past the informer.
	live     func(ctx context.Context, key client.Key) (*corev1.Namespace, error)
	empty    func(ctx context.Context, key client.Key) round
	status   func(ctx context.Context, old, updated *corev1.Namespace) error
	finalize func(ctx context.Context, ns *corev1.Namespace) error
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.get(key)
	if err != nil || !needsEmptying(cached) {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	if wait := unremarkable - r.now().Sub(cached.DeletionTimestamp.Time); wait > 0 && r.isEmptied(key.Cluster) {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	// The informer may be behind: the namespace may be gone, and there may be
	// another one of the name, whose content is not to be deleted.
	ns, err := r.live(ctx, key)
	if err != nil || !needsEmptying(ns) {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	result := r.empty(ctx, key)
	if result.done() {
		return reconcile.Result{}, ignoreNotFound(r.finalize(ctx, withoutFinalizer(ns)))
	}
	if err := ignoreNotFound(r.status(ctx, ns, report(ns, result, metav1.Now()))); err != nil {
		return reconcile.Result{}, err
	}
	// Finalizers of the content take their time, and nothing tells about their
	// end; failures may pass.
	return reconcile.Result{Backoff: true}, errors.Join(result.discovery, result.Err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// empty runs one round over the namespaced resources of the logical cluster.
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

func commit(ctx context.Context, local *client.Factory, old, updated *corev1.Namespace) error {
	_, err := reconcile.Commit(ctx, kinds.Namespaces.In(local.Cluster(client.KeyOf(old).Cluster.Path())), old, updated)
	return err
}
