// Package namespace deletes the content of namespaces that are being deleted, in every logical cluster of a shard.
//
//	kubectl delete namespace x
//	  └► phase Terminating, spec.finalizers [kubernetes]
//	       └► this controller: delete all objects of all namespaced resources that
//	          discovery of the logical cluster returns
//	            ├► objects with finalizers remain: report them in conditions, retry
//	            └► no objects remain: remove the finalizer; the server deletes the namespace
package namespace

import (
	"context"
	"errors"
	"fmt"
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

// Config configures the controller. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	Local      *client.Factory
	Namespaces *client.Informer[*corev1.Namespace]
	// LogicalClusters identifies logical clusters that are being deleted, which delete the content of all of their namespaces.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Stored selects the content to delete.
	Stored purge.Stored
}

// quietPeriod is the duration of the deletion of a logical cluster after which its namespaces are deleted individually.
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
		empty:  func(ctx context.Context, key client.Key) round { return empty(ctx, config, key) },
		status: reconcile.Committer(config.Local, kinds.Namespaces),
		finalize: func(ctx context.Context, ns *corev1.Namespace) error {
			return purge.Finalize(ctx, kinds.Namespaces.In(config.Local.Cluster(client.KeyOf(ns).Cluster.Path())), ns)
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.FromInformer(config.Namespaces, func(ns *corev1.Namespace) []client.Key {
				if !needsEmptying(ns) {
					return nil
				}
				return reconcile.KeysOf(ns)
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
	status    func(ctx context.Context, old, updated *corev1.Namespace) (*corev1.Namespace, error)
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
		ns = ns.DeepCopy()
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		return reconcile.Result{}, reconcile.IgnoreNotFound(r.finalize(ctx, ns))
	}
	_, err = r.status(ctx, ns, report(ns, result, metav1.Now()))
	if err = reconcile.IgnoreNotFound(err); err != nil {
		return reconcile.Result{}, err
	}
	// There are no events for the removal of finalizers of the content.
	return reconcile.Result{Backoff: true}, errors.Join(result.discovery, result.Err)
}

func empty(ctx context.Context, config Config, key client.Key) round {
	scope := config.Local.Cluster(key.Cluster.Path())
	discovery, err := documents.Of(scope)
	metadata, metadataErr := scope.Metadata()
	if err := errors.Join(err, metadataErr); err != nil {
		return round{discovery: err}
	}
	resources, err := purge.Discover(ctx, discovery)
	resources = slices.DeleteFunc(resources, func(r purge.Resource) bool { return !r.Namespaced })
	return round{discovery: err, Outcome: purge.Delete(ctx, metadata, config.Stored, key.Cluster, key.Name, resources)}
}

type round struct {
	discovery error // if not all resources are known
	purge.Outcome
}

func (r round) done() bool { return r.discovery == nil && r.Done() }

func needsEmptying(ns *corev1.Namespace) bool {
	return ns.DeletionTimestamp != nil && slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
}

// report sets the conditions of kube-controller-manager for a round.
func report(ns *corev1.Namespace, r round, now metav1.Time) *corev1.Namespace {
	ns = ns.DeepCopy()
	set := func(kind corev1.NamespaceConditionType, bad bool, badReason, badMessage, goodReason, goodMessage string) {
		c := corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: goodReason, Message: goodMessage}
		if bad {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, badReason, badMessage
		}
		setCondition(ns, c, now)
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, r.discovery != nil,
		"DiscoveryFailed", fmt.Sprintf("Discovery failed for some groups: %v", r.discovery),
		"ResourcesDiscovered", "All resources successfully discovered")
	set(corev1.NamespaceDeletionContentFailure, r.Err != nil,
		"ContentDeletionFailed", fmt.Sprintf("Failed to delete all resource types: %v", r.Err),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, len(r.Remaining) > 0,
		"SomeResourcesRemain", "Some resources are remaining: "+r.Resources(),
		"ContentRemoved", "All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, len(r.Finalizers) > 0,
		"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+r.WaitingFor(),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return ns
}

// setCondition updates a condition. Its time changes only with its status.
func setCondition(ns *corev1.Namespace, c corev1.NamespaceCondition, now metav1.Time) {
	c.LastTransitionTime = now
	at := slices.IndexFunc(ns.Status.Conditions, func(old corev1.NamespaceCondition) bool { return old.Type == c.Type })
	if at < 0 {
		ns.Status.Conditions = append(ns.Status.Conditions, c)
		return
	}
	if old := ns.Status.Conditions[at]; old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	ns.Status.Conditions[at] = c
}
