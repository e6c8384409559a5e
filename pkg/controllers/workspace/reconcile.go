package workspace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// observeTimeout is the time after which a created LogicalCluster that the watch has not reported is read live.
	observeTimeout = 5 * time.Second
	// quietPeriod is the time to become Ready before the phase of the Workspace is set to Initializing.
	quietPeriod = 250 * time.Millisecond
)

type workspaceReconciler struct {
	self string
	now  func() time.Time

	get    func(key client.Key) (*tenancyv1alpha1.Workspace, error)
	parent func(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)
	shards func() []*corev1alpha1.Shard
	silent func(shard string) bool
	types  tenancy.TypeLookup
	at     func(shard string) (logicalClusters, error)
	commit func(ctx context.Context, old, updated *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error)
	remove func(ctx context.Context, ws *tenancyv1alpha1.Workspace) error
	// localClusters gives access to this shard, and owned returns its LogicalClusters of a Workspace.
	localClusters logicalClusters
	owned         func(key client.Key) []*corev1alpha1.LogicalCluster
	// exists reads a Workspace from the shard.
	exists func(ctx context.Context, key client.Key, uid types.UID) (bool, error)
	event  func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w notice) error

	latest   reconcile.Latest[*tenancyv1alpha1.Workspace]
	claims   claims
	waits    tenancy.Dependencies[client.Key]
	reported reported
	// starts are the recently created or requested logical clusters of Workspaces. They only save reads and writes.
	starts table[started]

	orphans *orphans
}

func (r *workspaceReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.get(key)
	ws, exists := r.latest.Of(key, cached, err == nil)
	scheduling := exists && isScheduling(ws)
	if !scheduling || ws.DeletionTimestamp != nil {
		r.starts.Delete(key)
	}
	r.waits.Forget(key)
	if !exists {
		r.reported.fresh(key, "", nil)
		return retry(r.removeOrphans(ctx, key, ""))
	}
	orphans := r.removeOrphans(ctx, key, ws.UID)
	result, err := r.step(ctx, ws, scheduling)
	if now, ok := r.latest.Of(key, ws, true); ok {
		result = r.report(ctx, now, result)
	}
	if orphans != nil && err == nil && result == (reconcile.Result{}) {
		return retry(orphans)
	}
	return result, err
}

// removeOrphans deletes LogicalClusters of deleted Workspaces with this key, e.g. because the create request arrived
// after the deletion. uid is the UID of the current Workspace, if any. An orphan is deleted only if a live read
// finds no Workspace, and if it is new and empty. The shards of remote logical clusters apply the same rules.
func (r *workspaceReconciler) removeOrphans(ctx context.Context, key client.Key, uid types.UID) error {
	others := slices.DeleteFunc(r.owned(key), func(lc *corev1alpha1.LogicalCluster) bool {
		owner := lc.Spec.Owner.UID
		return owner == uid || owner == "" || lc.Labels[tenancy.OwnerShardLabel] != r.self
	})
	return r.orphans.remove(ctx, key, r.localClusters, others, r.now(), func(ctx context.Context, owner types.UID) (bool, error) { return r.exists(ctx, key, owner) })
}

// report records Events for the reasons why a Workspace is not ready, and requeues it for Events that are due later.
func (r *workspaceReconciler) report(ctx context.Context, ws *tenancyv1alpha1.Workspace, result reconcile.Result) reconcile.Result {
	all, next := notices(ws, r.now())
	for _, w := range r.reported.fresh(client.KeyOf(ws), ws.UID, all) {
		if err := r.event(ctx, ws, w); err != nil {
			klog.FromContext(ctx).V(2).Info("Failed to record an Event for a workspace", "reason", w.reason, "err", err)
		}
	}
	if next > 0 && (result.RequeueAfter == 0 || next < result.RequeueAfter) {
		result.RequeueAfter = next
	}
	return result
}

func (r *workspaceReconciler) step(ctx context.Context, ws *tenancyv1alpha1.Workspace, scheduling bool) (reconcile.Result, error) {
	switch {
	case ws.DeletionTimestamp != nil:
		return r.delete(ctx, ws)
	case ws.Spec.Mount != nil:
		return reconcile.Result{}, nil // has no logical cluster
	case !claimed(ws):
		return r.schedule(ctx, ws)
	case scheduling:
		return r.finishScheduling(ctx, ws)
	default:
		return r.follow(ctx, ws)
	}
}

// finishScheduling handles a claimed Workspace in the phase Scheduling. The first applicable line determines the action:
//
//	the logical cluster is                     action
//	initialized, or being deleted              follow it
//	started by this process a moment ago       wait, because most become Ready within milliseconds
//	observed, or created by this process       set the phase Initializing
//	neither                                    claim and create or request it again
func (r *workspaceReconciler) finishScheduling(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	clusters, err := r.at(ws.Annotations[shardAnnotation])
	if err != nil {
		return r.failed(ctx, ws, err)
	}
	lc, found := clusters.cached(logicalcluster.Name(ws.Spec.Cluster))
	found = found && owns(ws, lc)
	start := r.startOf(ws)
	age := r.now().Sub(start.when)
	switch {
	case found && (initialized(lc) || lc.DeletionTimestamp != nil):
		return r.follow(ctx, ws)
	case age < quietPeriod:
		return reconcile.Result{RequeueAfter: quietPeriod - age}, nil
	case found || start.created:
		_, err := r.write(ctx, ws, scheduled(ws))
		return reconcile.Result{}, err
	default:
		return r.schedule(ctx, ws)
	}
}

// schedule claims a logical cluster and creates it, or requests it from its shard.
func (r *workspaceReconciler) schedule(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	parent, err := r.parent(logicalcluster.From(ws))
	if err != nil {
		// The informer may be behind. The path depends on the parent.
		return reconcile.Result{}, fmt.Errorf("the logical cluster of the workspace has no LogicalCluster object: %w", err)
	}
	if parent.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // the Workspace will be deleted, too
	}
	in := facts{parent: parent, shards: r.shards(), observed: r.observed, types: r.waits.Types(client.KeyOf(ws), r.types), newName: newClusterName}
	if !claimed(ws) || !isRequested(ws, r.self) {
		updated, p := claim(ws, in)
		if p == nil {
			updated, p = requestPlacement(updated, in, r.self)
		}
		if p != nil {
			return r.reject(ctx, ws, p)
		}
		shard, first := updated.Annotations[shardAnnotation], ws.Annotations[shardAnnotation] == ""
		if first {
			r.claims.add(shard, r.now())
		}
		if ws, err = r.write(ctx, ws, updated); err != nil {
			if first {
				r.claims.drop(shard, 1, r.now())
			}
			return reconcile.Result{}, err
		}
	}
	clusters, err := r.at(ws.Annotations[shardAnnotation])
	if err != nil {
		return r.failed(ctx, ws, err)
	}
	if clusters.isRemote() {
		return r.await(ctx, ws, clusters)
	}
	lc, p := logicalClusterFor(ws, in, r.self)
	if p != nil {
		return r.reject(ctx, ws, p)
	}
	if err := r.create(ctx, ws, lc, clusters); err != nil {
		return r.failed(ctx, ws, err)
	}
	klog.FromContext(ctx).V(2).Info("Created a logical cluster", "logicalCluster", ws.Spec.Cluster, "shard", ws.Annotations[shardAnnotation])
	r.starts.Store(client.KeyOf(ws), &started{uid: ws.UID, when: r.now(), created: true})
	return reconcile.Result{RequeueAfter: quietPeriod}, nil // the watch requeues it when it is Ready
}

// await waits for the logical cluster that another shard creates. If the watch does not report it, a live read
// determines whether the shard responds, and which workspace owns the logical cluster. The owner is final, because the
// shard does not replace existing logical clusters.
func (r *workspaceReconciler) await(ctx context.Context, ws *tenancyv1alpha1.Workspace, clusters logicalClusters) (reconcile.Result, error) {
	if r.startOf(ws).when.IsZero() {
		r.starts.Store(client.KeyOf(ws), &started{uid: ws.UID, when: r.now()})
		return reconcile.Result{RequeueAfter: quietPeriod}, nil
	}
	lc, err := clusters.get(ctx, logicalcluster.Name(ws.Spec.Cluster))
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: observeTimeout}, nil
	case err != nil:
		return r.failed(ctx, ws, err)
	case !owns(ws, lc):
		return r.failed(ctx, ws, notOwnedError(ws))
	default:
		_, err := r.write(ctx, ws, scheduled(ws))
		return reconcile.Result{}, err
	}
}

func (r *workspaceReconciler) create(ctx context.Context, ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster, clusters logicalClusters) error {
	cluster := logicalcluster.Name(ws.Spec.Cluster)
	err := clusters.create(ctx, cluster, lc)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing, err := clusters.get(ctx, cluster)
	if err != nil {
		return err
	}
	if !owns(ws, existing) {
		return notOwnedError(ws)
	}
	return nil
}

func notOwnedError(ws *tenancyv1alpha1.Workspace) error {
	return fmt.Errorf("logical cluster %s belongs to another workspace: delete this one and create it again", ws.Spec.Cluster)
}

func (r *workspaceReconciler) follow(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	clusters, err := r.at(ws.Annotations[shardAnnotation])
	if err != nil {
		return retry(err)
	}
	lc, found := clusters.cached(logicalcluster.Name(ws.Spec.Cluster))
	if !found {
		return r.missing(ctx, ws, clusters)
	}
	if lc.DeletionTimestamp != nil {
		// The Workspace cannot be used any more, so delete it, too.
		if err := reconcile.IgnoreNotFound(r.remove(ctx, ws)); err != nil {
			return reconcile.Result{}, fmt.Errorf("deleting a workspace whose LogicalCluster is being deleted: %w", err)
		}
		return reconcile.Result{}, nil
	}
	_, err = r.write(ctx, ws, label(mirror(ws, lc)))
	return reconcile.Result{}, err
}

// missing handles a LogicalCluster that the watch has not reported.
func (r *workspaceReconciler) missing(ctx context.Context, ws *tenancyv1alpha1.Workspace, clusters logicalClusters) (reconcile.Result, error) {
	if since := conditions.Get(ws, tenancyv1alpha1.WorkspaceScheduled); since != nil {
		if wait := since.LastTransitionTime.Add(observeTimeout).Sub(r.now()); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
	}
	lc, err := clusters.get(ctx, logicalcluster.Name(ws.Spec.Cluster))
	switch {
	case apierrors.IsNotFound(err):
		_, err = r.write(ctx, ws, label(markUnavailable(ws)))
		return reconcile.Result{}, err
	case err != nil:
		return retry(err)
	default:
		// The watch is broken, or a user removed the label that it selects.
		_, err = r.write(ctx, ws, label(mirror(ws, lc)))
		return reconcile.Result{RequeueAfter: observeTimeout}, err
	}
}

// delete deletes the LogicalCluster, or lets its shard delete it, and then removes the finalizer of the Workspace.
func (r *workspaceReconciler) delete(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	if !slices.Contains(ws.Finalizers, workspaceFinalizer) {
		return reconcile.Result{}, nil
	}
	cluster, shard := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation]), ws.Annotations[shardAnnotation]
	if cluster == "" || shard == "" {
		return r.release(ctx, ws) // no logical cluster was created
	}
	clusters, err := r.at(shard)
	if err != nil {
		return r.failed(ctx, ws, err)
	}
	lc, found := clusters.cached(cluster)
	if !found || clusters.isRemote() && lc.DeletionTimestamp == nil {
		// The informer may be behind. For another shard, this also detects whether it responds.
		lc, err = clusters.get(ctx, cluster)
		if apierrors.IsNotFound(err) {
			return r.release(ctx, ws)
		}
		if err != nil {
			return r.failed(ctx, ws, err)
		}
	}
	if !owns(ws, lc) {
		return r.release(ctx, ws) // owned by another Workspace
	}
	if lc.DeletionTimestamp == nil && !clusters.isRemote() {
		if err := clusters.remove(ctx, cluster, lc); err != nil {
			return r.failed(ctx, ws, err)
		}
	}
	_, err = r.write(ctx, ws, label(mirror(ws, withDeletingPhase(lc))))
	var next reconcile.Result
	if !found || lc.DeletionTimestamp == nil && clusters.isRemote() {
		next.RequeueAfter = observeTimeout // the shard may be unreachable
	}
	return next, reconcile.IgnoreNotFound(err)
}

func (r *workspaceReconciler) release(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	updated := ws.DeepCopy()
	updated.Finalizers = slices.DeleteFunc(updated.Finalizers, func(f string) bool { return f == workspaceFinalizer })
	_, err := r.write(ctx, ws, updated)
	return reconcile.Result{}, reconcile.IgnoreNotFound(err)
}

// reject sets the reason why the Workspace is not scheduled. Changes of shards and of requested types requeue it.
func (r *workspaceReconciler) reject(ctx context.Context, ws *tenancyv1alpha1.Workspace, p *problem) (reconcile.Result, error) {
	if len(p.shards) > 0 {
		klog.FromContext(ctx).V(2).Info("No shard accepts the workspace", "shards", p.shards)
	}
	_, err := r.write(ctx, ws, withProblem(ws, tenancyv1alpha1.WorkspaceScheduled, p))
	return reconcile.Result{RequeueAfter: p.retry}, err
}

func (r *workspaceReconciler) observed(shard *corev1alpha1.Shard) shardObservation {
	return shardObservation{claims: r.claims.of(shard.Name, r.now()), silent: r.silent(shard.Name)}
}

// failed sets the reason why the logical cluster could not be created or deleted, and retries. It omits the cause if the
// shard is unreachable, because it may differ each time and every change of the message is a write.
func (r *workspaceReconciler) failed(ctx context.Context, ws *tenancyv1alpha1.Workspace, cause error) (reconcile.Result, error) {
	action, condition := "create", tenancyv1alpha1.WorkspaceScheduled
	if ws.DeletionTimestamp != nil {
		action, condition = "delete", tenancyv1alpha1.WorkspaceContentDeleted
	}
	shard := ws.Annotations[shardAnnotation]
	p := problemf(tenancyv1alpha1.WorkspaceReasonReasonUnknown, "cannot %s the logical cluster on shard %q: %v", action, shard, cause)
	if errors.Is(cause, peers.ErrUnreachable) {
		p = problemf(reasonShardUnreachable, "shard %q does not respond, retrying", shard)
	}
	if _, err := r.write(ctx, ws, withProblem(ws, condition, p)); err != nil {
		return reconcile.Result{}, err
	}
	return retry(cause)
}

// retry requeues the Workspace after an error. If a shard is unreachable, this is not reported as a failure of each Workspace
// that waits for it, and the retries are spread.
func retry(cause error) (reconcile.Result, error) {
	if !errors.Is(cause, peers.ErrUnreachable) {
		return reconcile.Result{}, cause
	}
	return reconcile.Result{RequeueAfter: peers.OpenTimeout + rand.N(2*peers.OpenTimeout)}, nil
}

func (r *workspaceReconciler) write(ctx context.Context, old, updated *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
	return r.latest.Commit(ctx, r.commit, old, address(updated, r.self))
}

type started struct {
	uid     types.UID
	when    time.Time
	created bool // false if it was only requested
}

// startOf returns the zero value if the logical cluster of a Workspace was not created or requested recently.
func (r *workspaceReconciler) startOf(ws *tenancyv1alpha1.Workspace) started {
	if start := r.starts.get(client.KeyOf(ws)); start != nil && start.uid == ws.UID {
		return *start
	}
	return started{}
}
