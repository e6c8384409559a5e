package logicalcluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster/defaults"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// turnInterval is the time between two initialized logical clusters for which a missing namespace is created. After an
// upgrade, these may be all. A namespace causes three writes with its initial objects, so the rate is 100 writes per
// second.
const turnInterval = 30 * time.Millisecond

// initialNamespaces creates the initial namespaces of logical clusters: default, and kube-system if the type is
// root:universal or extends it.
type initialNamespaces struct {
	has    func(cluster logicalcluster.Name, name string) bool
	create func(ctx context.Context, cluster logicalcluster.Name, name string) error
	// isUniversal reports whether the type is root:universal or extends it. It returns an error if this is unknown.
	isUniversal func(lc *corev1alpha1.LogicalCluster) (bool, error)
	turns       reconcile.Turns[logicalcluster.Name]
}

func newInitialNamespaces(config Config) *initialNamespaces {
	lister := config.Namespaces.Lister()
	return &initialNamespaces{
		has: func(cluster logicalcluster.Name, name string) bool {
			_, err := lister.Get(client.Key{Cluster: cluster, Name: name})
			return err == nil
		},
		create: func(ctx context.Context, cluster logicalcluster.Name, name string) error {
			return createNamespace(ctx, config.Local, cluster, name)
		},
		isUniversal: isUniversal(config.Defaults), turns: reconcile.Turns[logicalcluster.Name]{Interval: turnInterval},
	}
}

func isInitialNamespace(name string) bool {
	return name == metav1.NamespaceDefault || name == metav1.NamespaceSystem
}

// make creates the missing namespaces concurrently, or returns the delay after which it must be called again.
func (n *initialNamespaces) make(ctx context.Context, lc *corev1alpha1.LogicalCluster, now time.Time) (again time.Duration, err error) {
	cluster := logicalcluster.From(lc)
	missing, err := n.missing(lc)
	if len(missing) == 0 {
		n.turns.Forget(cluster)
		return 0, err
	}
	if wait := untilObserved(lc, now); wait > 0 {
		return wait, err
	}
	if isUp(lc) {
		if wait := n.turns.Wait(cluster, now); wait > 0 {
			return wait, err
		}
	}
	var all sync.WaitGroup
	errs := make([]error, len(missing)+1)
	errs[len(missing)] = err
	for i, name := range missing {
		all.Go(func() { errs[i] = n.create(ctx, cluster, name) })
	}
	all.Wait()
	return 0, errors.Join(errs...)
}

// missing returns the names of initial namespaces that the informer does not contain.
func (n *initialNamespaces) missing(lc *corev1alpha1.LogicalCluster) (missing []string, err error) {
	cluster := logicalcluster.From(lc)
	if !n.has(cluster, metav1.NamespaceDefault) {
		missing = append(missing, metav1.NamespaceDefault)
	}
	if n.has(cluster, metav1.NamespaceSystem) {
		return missing, nil
	}
	universal, err := n.isUniversal(lc)
	if universal {
		missing = append(missing, metav1.NamespaceSystem)
	}
	return missing, err
}

// isUp reports whether a LogicalCluster was initialized. After that, missing namespaces do not block it.
func isUp(lc *corev1alpha1.LogicalCluster) bool {
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
		return false
	default:
		return true
	}
}

// untilObserved returns the time until a missing namespace of an initialized logical cluster is created, because the
// informer may be behind.
func untilObserved(lc *corev1alpha1.LogicalCluster, now time.Time) time.Duration {
	initialized := conditions.Get(lc, tenancyv1alpha1.WorkspaceInitialized)
	if initialized == nil {
		return 0
	}
	return initialized.LastTransitionTime.Add(observeTimeout).Sub(now)
}

// isUniversal uses the types of the default bindings. Their changes requeue the logical clusters.
func isUniversal(config defaults.Config) func(lc *corev1alpha1.LogicalCluster) (bool, error) {
	return func(lc *corev1alpha1.LogicalCluster) (bool, error) {
		types, err := config.Types.Of(lc)
		if err != nil {
			return false, config.TypesComplete() // nil if the type does not exist
		}
		return types.IsUniversal(), nil
	}
}

func createNamespace(ctx context.Context, local *client.Factory, cluster logicalcluster.Name, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := kinds.Namespaces.In(local.Cluster(cluster.Path())).Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the namespace %s: %w", name, err)
	}
	return nil
}
