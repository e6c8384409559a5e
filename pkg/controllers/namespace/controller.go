package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
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
	// Stored says what is to be deleted.
	Stored purge.Stored
}

// New returns the controller.
func New(config Config) *reconcile.Controller[client.Key] {
	namespaces := config.Namespaces.Lister()
	r := &reconciler{
		get: namespaces.Get,
		live: func(ctx context.Context, key client.Key) (*corev1.Namespace, error) {
			return client.Namespaces.In(config.Local.Cluster(key.Cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
		},
		empty: func(ctx context.Context, key client.Key) round { return empty(ctx, config, key) },
		status: func(ctx context.Context, old, updated *corev1.Namespace) error {
			return commit(ctx, config.Local, old, updated)
		},
		finalize: func(ctx context.Context, ns *corev1.Namespace) error { return finalize(ctx, config.Local, ns) },
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
	get func(key client.Key) (*corev1.Namespace, error)
	// live is get past the informer.
	live     func(ctx context.Context, key client.Key) (*corev1.Namespace, error)
	empty    func(ctx context.Context, key client.Key) round
	status   func(ctx context.Context, old, updated *corev1.Namespace) error
	finalize func(ctx context.Context, ns *corev1.Namespace) error
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	if cached, err := r.get(key); err != nil || !needsEmptying(cached) {
		return reconcile.Result{}, ignoreNotFound(err)
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
	discovery, err := scope.Discovery()
	if err != nil {
		return round{discovery: err}
	}
	metadata, err := scope.Metadata()
	if err != nil {
		return round{discovery: err}
	}
	resources, err := purge.Discover(ctx, discovery)
	resources = slices.DeleteFunc(resources, func(r purge.Resource) bool { return !r.Namespaced })
	present, storedErr := purge.Present(ctx, config.Stored, key.Cluster, key.Name, resources)
	if storedErr != nil {
		return round{discovery: errors.Join(err, storedErr)}
	}
	return round{discovery: err, Outcome: purge.Delete(ctx, metadata, present, key.Name)}
}

func commit(ctx context.Context, local *client.Factory, old, updated *corev1.Namespace) error {
	_, err := reconcile.Commit(ctx, client.Namespaces.In(local.Cluster(client.KeyOf(old).Cluster.Path())), old, updated)
	return err
}

// finalize writes spec.finalizers, which only this subresource can.
func finalize(ctx context.Context, local *client.Factory, ns *corev1.Namespace) error {
	key := client.KeyOf(ns)
	err := client.Namespaces.In(local.Cluster(key.Cluster.Path())).GetClient().Put().
		Resource(client.Namespaces.Resource).Name(ns.Name).SubResource("finalize").
		Body(ns).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("finalizing namespace %s: %w", key, err)
	}
	return nil
}
