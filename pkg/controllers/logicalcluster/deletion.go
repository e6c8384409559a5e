package logicalcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// DeletionName is the name of the controller that deletes content. It has its own queue, so that the deletion of a large
// tree does not delay the creation of workspaces.
const DeletionName = "logicalcluster-deletion"

const (
	// deletionWorkers mostly wait for etcd.
	deletionWorkers = 8
	// recheckInterval is a fallback for missing events.
	recheckInterval = time.Second
	// quietPeriod is the duration of a deletion after which its progress is reported.
	quietPeriod = 10 * time.Second
)

// NewDeletion returns the controller that deletes the content of logical clusters.
func NewDeletion(config Config) *reconcile.Controller[client.Key] {
	clusters := config.LogicalClusters.Lister()
	r := &deletionReconciler{
		now: time.Now, get: clusters.Get,
		live: func(ctx context.Context, key client.Key) (*corev1alpha1.LogicalCluster, error) {
			return kinds.LogicalClusters.In(config.Local.Cluster(key.Cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
		},
		deleteContent: func(ctx context.Context, cluster logicalcluster.Name) result {
			return contentOf(ctx, config, cluster)
		},
		claimed: func(cluster logicalcluster.Name) bool {
			return slices.ContainsFunc(config.Bindings.Lister().Cluster(cluster).List(nil), mayWriteLogicalCluster)
		},
		writer: writer{commit: config.commit()},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: DeletionName, Reconcile: r.reconcile, Workers: deletionWorkers,
		Timeout: 2 * time.Minute, // a round may consist of many requests
		Sources: []reconcile.Source[client.Key]{
			r.deletions(config.LogicalClusters),
			lastOf(config.Namespaces, clusters), lastOf(config.Bindings, clusters), lastOf(config.Workspaces, clusters),
		},
	})
}

// deletions enqueues the LogicalClusters that are being deleted, except for writes of this controller, which need no further round.
func (r *deletionReconciler) deletions(clusters *client.Informer[*corev1alpha1.LogicalCluster]) reconcile.Source[client.Key] {
	return func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		enqueue := func(lc *corev1alpha1.LogicalCluster) {
			if lc.DeletionTimestamp != nil && !r.latest.Is(lc) {
				queue.Add(client.KeyOf(lc))
			}
		}
		return clusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
			OnAdd:    func(lc *corev1alpha1.LogicalCluster, _ bool) { enqueue(lc) },
			OnUpdate: func(_, lc *corev1alpha1.LogicalCluster) { enqueue(lc) },
			OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) { queue.Add(client.KeyOf(last)) }, // forgets it
		}).Remove, nil
	}
}

func contentOf(ctx context.Context, config Config, cluster logicalcluster.Name) result {
	scope := config.Local.Cluster(cluster.Path())
	discovery, err := documents.Of(scope)
	metadata, metadataErr := scope.Metadata()
	if err := errors.Join(err, metadataErr); err != nil {
		return result{reason: reasonDiscoveryFailed, detail: err.Error(), err: err}
	}
	resources, err := purge.Discover(ctx, discovery)
	deleted := deleteContent(resources, err, func(s stage, of []purge.Resource) purge.Outcome {
		var err error
		switch s {
		case content:
			// Terminate the namespaces first. Otherwise other controllers would recreate their objects in each of them. A namespace
			// that the informer has not observed yet is found at the end.
			if slices.ContainsFunc(config.Namespaces.Lister().Cluster(cluster).List(nil), isOpen) {
				_, err = purge.Remove(ctx, metadata, config.Stored, cluster, "", only(resources, namespaces))
			}
		case namespaces:
			err = release(ctx, kinds.Namespaces.In(scope))
		default:
		}
		if err != nil {
			return purge.Outcome{Err: err}
		}
		return purge.Delete(ctx, metadata, config.Stored, cluster, "", of)
	})
	if !deleted.done() {
		return deleted
	}
	// All definitions and bindings that might serve objects have been deleted.
	unserved, err := config.Unserved(ctx, cluster)
	switch {
	case err != nil:
		return result{reason: reasonDeletionFailed, detail: err.Error(), err: err}
	case unserved > 0:
		return result{reason: reasonRemaining, detail: fmt.Sprintf("%d objects whose API is no longer served were deleted", unserved), inProgress: true}
	default:
		return result{}
	}
}

// lastOf enqueues logical clusters that are being deleted when the last object of a kind was deleted. Before that, a
// round would still find other objects.
func lastOf[T client.Object](informer *client.Informer[T], clusters client.Lister[*corev1alpha1.LogicalCluster]) reconcile.Source[client.Key] {
	return reconcile.OnDelete(informer, func(object T) []client.Key {
		cluster := logicalcluster.From(object)
		if informer.Lister().Cluster(cluster).Len() > 0 {
			return nil
		}
		keys := keyOf(cluster)
		if lc, err := clusters.Get(keys[0]); err != nil || lc.DeletionTimestamp == nil {
			return nil
		}
		return keys
	})
}

type deletionReconciler struct {
	now           func() time.Time
	get           func(key client.Key) (*corev1alpha1.LogicalCluster, error)
	live          func(ctx context.Context, key client.Key) (*corev1alpha1.LogicalCluster, error)
	deleteContent func(ctx context.Context, cluster logicalcluster.Name) result
	claimed       func(cluster logicalcluster.Name) bool // whether a provider may write the LogicalCluster
	writer
}

// reconcile deletes the content and then removes the finalizer.
func (r *deletionReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.get(key)
	lc, exists := r.latest.Of(key, cached, err == nil)
	if !exists || lc.Name != corev1alpha1.LogicalClusterName || lc.DeletionTimestamp == nil {
		return reconcile.Result{}, nil
	}
	if !slices.Contains(lc.Finalizers, tenancy.ContentFinalizer) {
		return reconcile.Result{}, r.reportFinalizers(ctx, lc)
	}
	if lc, err = r.write(ctx, lc, label(terminate(lc))); err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	if lc.Status.Phase == corev1alpha1.LogicalClusterPhaseTerminating {
		return reconcile.Result{}, r.reportWaiting(ctx, lc, reasonTerminators, fmt.Sprintf("waiting for terminators: %v", lc.Status.Terminators))
	}

	// After the binding is deleted, its provider could not remove its finalizers any more.
	if others := othersFinalizers(lc); len(others) > 0 && r.claimed(logicalcluster.From(lc)) {
		return reconcile.Result{Backoff: true}, r.reportWaiting(ctx, lc, reasonFinalizers,
			"the content is not deleted yet; waiting for finalizers of the LogicalCluster, which an APIBinding allows the provider to set: "+strings.Join(others, ", "))
	}

	// The informer may be behind, and the content may belong to another LogicalCluster, e.g. a restored one.
	if live, err := r.live(ctx, client.KeyOf(lc)); err != nil || live.UID != lc.UID || live.DeletionTimestamp == nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	deleted := r.deleteContent(ctx, logicalcluster.From(lc))
	if deleted.inProgress && r.now().Sub(lc.DeletionTimestamp.Time) < quietPeriod {
		return reconcile.Result{RequeueAfter: recheckInterval}, nil // usually an event requeues it earlier
	}
	if !deleted.done() {
		if _, err = r.write(ctx, lc, report(lc, deleted)); err != nil {
			return reconcile.Result{}, reconcile.IgnoreNotFound(err)
		}
		// There are events for the deletion of Workspaces, but not of other objects with finalizers.
		return reconcile.Result{Backoff: true}, deleted.err
	}
	updated := lc.DeepCopy()
	updated.Finalizers = othersFinalizers(lc)
	if lc, err = r.write(ctx, lc, updated); err == nil {
		err = r.reportFinalizers(ctx, lc)
	}
	return reconcile.Result{}, reconcile.IgnoreNotFound(err)
}

func othersFinalizers(lc *corev1alpha1.LogicalCluster) []string {
	return slices.DeleteFunc(slices.Clone(lc.Finalizers), func(f string) bool { return f == tenancy.ContentFinalizer })
}

// mayWriteLogicalCluster reports whether a binding authorizes the provider of its export to write the LogicalCluster.
func mayWriteLogicalCluster(binding *apisv1alpha2.APIBinding) bool {
	return binding.DeletionTimestamp == nil && slices.ContainsFunc(binding.Status.AppliedPermissionClaims, func(c apisv1alpha2.ScopedPermissionClaim) bool {
		return c.Group == kinds.LogicalClusters.Group && c.Resource == kinds.LogicalClusters.Resource &&
			slices.ContainsFunc(c.Verbs, func(verb string) bool { return verb == "update" || verb == "patch" || verb == rbacv1.VerbAll })
	})
}

// reportFinalizers reports the finalizers that block the deletion of a LogicalCluster without content.
func (r *deletionReconciler) reportFinalizers(ctx context.Context, lc *corev1alpha1.LogicalCluster) error {
	if lc == nil || len(lc.Finalizers) == 0 || lc.Status.Phase != corev1alpha1.LogicalClusterPhaseDeleting {
		return nil
	}
	return r.reportWaiting(ctx, lc, reasonFinalizers, "the content is deleted; waiting for finalizers of the LogicalCluster: "+strings.Join(lc.Finalizers, ", "))
}

func (r *deletionReconciler) reportWaiting(ctx context.Context, lc *corev1alpha1.LogicalCluster, reason, detail string) error {
	_, err := r.write(ctx, lc, report(lc, result{reason: reason, detail: detail}))
	return reconcile.IgnoreNotFound(err)
}

// Reasons of the condition WorkspaceContentDeleted while it is false.
const (
	reasonDiscoveryFailed = "DiscoveryFailed"
	reasonDeletionFailed  = "DeletionFailed"
	reasonRemaining       = "ContentRemaining"
	reasonTerminators     = "TerminatorExists"
	reasonFinalizers      = "FinalizersRemaining"
)

// stage is a part of the content that is deleted together.
type stage int

const (
	children stage = iota // Workspaces; their content is deleted with them
	content               // everything that is not in another stage
	// Namespaces are terminated before, and finalized after their content, which is faster than deleting each of them.
	namespaces
	// Definitions are deleted after the custom resources, because these are served only as long as the definition exists.
	definitions
	// RBAC objects are deleted last, so that administrators can inspect the remaining content and remove finalizers.
	rights
	kept // the LogicalCluster itself
	// Finally, everything except the LogicalCluster is checked again for objects that were created in the meantime.
	everything
)

// stages are the stages of resources that are not in the stage content.
var stages = map[schema.GroupResource]stage{
	kinds.Workspaces.GroupResource():                children,
	kinds.Namespaces.GroupResource():                namespaces,
	kinds.CustomResourceDefinitions.GroupResource(): definitions,
	kinds.ClusterRoles.GroupResource():              rights,
	kinds.ClusterRoleBindings.GroupResource():       rights,
	kinds.LogicalClusters.GroupResource():           kept,
}

func stageOf(resource schema.GroupResource) stage {
	if s, ok := stages[resource]; ok {
		return s
	}
	return content
}

type result struct {
	reason, detail string
	err            error
	// inProgress is set if the remaining content only waits for the shard, e.g. for deleting the objects of bindings.
	inProgress bool
}

func (r result) done() bool { return r.reason == "" }

// deleteContent deletes the stages in order and stops at the first one with remaining content.
func deleteContent(resources []purge.Resource, discovery error, purgeAll func(stage, []purge.Resource) purge.Outcome) result {
	if discovery != nil {
		// An unknown resource might belong to any stage.
		return result{reason: reasonDiscoveryFailed, detail: discovery.Error(), err: discovery}
	}
	for _, s := range []stage{children, content, namespaces, definitions, rights, everything} {
		outcome := purgeAll(s, only(resources, s))
		switch {
		case outcome.Err != nil:
			return result{reason: reasonDeletionFailed, detail: outcome.Err.Error(), err: outcome.Err}
		case !outcome.Done():
			detail := outcome.Resources()
			if waiting := outcome.WaitingFor(); waiting != "" {
				detail += "; waiting for finalizers: " + waiting
			}
			delete(outcome.Finalizers, apis.BindingFinalizer)
			delete(outcome.Finalizers, cachev1alpha1.CachedResourceFinalizer)
			return result{reason: reasonRemaining, detail: detail, inProgress: len(outcome.Finalizers) == 0}
		}
	}
	return result{}
}

func report(lc *corev1alpha1.LogicalCluster, r result) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	severity := conditionsv1alpha1.ConditionSeverityInfo
	if r.err != nil {
		severity = conditionsv1alpha1.ConditionSeverityError
	}
	conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceContentDeleted, r.reason, severity, "%s", r.detail)
	return lc
}

func isOpen(ns *corev1.Namespace) bool { return ns.DeletionTimestamp == nil }

// release finalizes the namespaces without remaining content.
func release(ctx context.Context, namespaces *client.Client[*corev1.Namespace, *corev1.NamespaceList]) error {
	all, err := namespaces.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing namespaces: %w", err)
	}
	for i := range all.Items {
		ns := &all.Items[i]
		if isOpen(ns) {
			continue // recreated
		}
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		if err := purge.Finalize(ctx, namespaces, ns); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

func only(resources []purge.Resource, s stage) []purge.Resource {
	return slices.DeleteFunc(slices.Clone(resources), func(r purge.Resource) bool {
		of := stageOf(r.GroupResource())
		return of != s && (s != everything || of == kept)
	})
}
