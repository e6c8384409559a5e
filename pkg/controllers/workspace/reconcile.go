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
	// observeTimeout is how long a LogicalCluster that was created may take to be seen
	// by the watch before it is asked for.
	observeTimeout = 5 * time.Second
	// unremarkable is how long a logical cluster may take to become Ready before
	// its Workspace is said to be Initializing.
	unremarkable = 250 * time.Millisecond
)

type reconciler struct {
	self string
	now  func() time.Time

	get    func(key client.Key) (*tenancyv1alpha1.Workspace, error)
	parent func(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)
	shards func() []*corev1alpha1.Shard
	// silent reports whether a shard has not answered lately.
	silent func(shard string) bool
	types  tenancy.TypeLookup
	at     func(shard string) (logicalClusters, error)
	commit func(ctx context.Context, old, updated *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error)
	remove func(ctx context.Context, ws *tenancyv1alpha1.Workspace) error
	// here is this shard, and owned returns its LogicalClusters whose owner has a key.
	here  logicalClusters
	owned func(key client.Key) []*corev1alpha1.LogicalCluster
	// exists asks the shard itself for a Workspace.
	exists func(ctx context.Context, key client.Key, uid types.UID) (bool, error)

	// event tells users about a Workspace.
	event func(ctx context.Context, ws *tenancyv1alpha1.Workspace, w word) error

	latest reconcile.Latest[*tenancyv1alpha1.Workspace]
	starts starts
	claims claims
	waits  tenancy.Waits[client.Key]
	told   told

	orphans *orphans
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.get(key)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	ws, exists := r.latest.Of(key, cached, err == nil)
	scheduling := exists && isScheduling(ws)
	if !scheduling || ws.DeletionTimestamp != nil {
		r.starts.forget(key)
	}
	r.waits.Forget(key)
	if !exists {
		r.told.fresh(key, "", nil)
		return again(r.removeOrphans(ctx, key, ""))
	}
	orphans := r.removeOrphans(ctx, key, ws.UID)
	result, err := r.step(ctx, ws, scheduling)
	if now, ok := r.latest.Of(key, ws, true); ok {
		result = r.tell(ctx, now, result)
	}
	if orphans != nil && err == nil && result == (reconcile.Result{}) {
		return again(orphans)
	}
	return result, err
}

// removeOrphans deletes the LogicalClusters that were created for a Workspace of
// this key which does not exist any more: the answer to the create was lost, and
// the create arrived after the Workspace had been deleted. uid is that of the
// Workspace which has the key now, if any.
//
// Nothing is deleted because it could not be seen. This shard is the one that
// has the Workspaces, and is asked past its informer; and nothing is deleted that
// is old or that somebody has put anything into. Other shards do so themselves, by the same
// rules.
func (r *reconciler) removeOrphans(ctx context.Context, key client.Key, uid types.UID) error {
	kept := 0
	for _, lc := range r.owned(key) {
		owner := lc.Spec.Owner.UID
		if owner == uid || owner == "" || lc.DeletionTimestamp != nil || lc.Labels[tenancy.OwnerShardLabel] != r.self {
			continue
		}
		stays, err := removeOrphan(ctx, key, r.here, lc, r.now(), func(ctx context.Context) (bool, error) { return r.exists(ctx, key, owner) })
		if err != nil {
			return fmt.Errorf("logical cluster %s, whose workspace %s does not exist: %w", logicalcluster.From(lc), key, err)
		}
		if stays {
			kept++
		}
	}
	r.orphans.note(key, kept)
	return nil
}

// tell has Events say what keeps a Workspace waiting, and looks again when there will be more
// to say. result is when it is looked at anyway.
func (r *reconciler) tell(ctx context.Context, ws *tenancyv1alpha1.Workspace, result reconcile.Result) reconcile.Result {
	all, next := words(ws, r.now())
	for _, w := range r.told.fresh(client.KeyOf(ws), ws.UID, all) {
		if err := r.event(ctx, ws, w); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot tell of a workspace in an Event", "reason", w.reason, "err", err)
		}
	}
	if next > 0 && (result.RequeueAfter == 0 || next < result.RequeueAfter) {
		result.RequeueAfter = next
	}
	return result
}

// step leads a Workspace one step further.
func (r *reconciler) step(ctx context.Context, ws *tenancyv1alpha1.Workspace, scheduling bool) (reconcile.Result, error) {
	switch {
	case ws.DeletionTimestamp != nil:
		return r.delete(ctx, ws)
	case ws.Spec.Mount != nil:
		return reconcile.Result{}, nil // leads elsewhere, and has no logical cluster
	case !claimed(ws):
		return r.schedule(ctx, ws)
	case scheduling:
		return r.leaveScheduling(ctx, ws)
	default:
		return r.follow(ctx, ws)
	}
}

// leaveScheduling leads a Workspace that has claimed a logical cluster out of the phase Scheduling, by
// the first line of this table that applies:
//
//	the logical cluster is                     next
//	initialized, or being deleted              it is followed, in whatever phase it is
//	started by this process a moment ago       wait, because most are Ready within milliseconds
//	seen, or created by this process           the phase Initializing
//	neither                                    it is claimed and created, or asked for, once more
func (r *reconciler) leaveScheduling(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	clusters, err := r.at(ws.Annotations[shardAnnotation])
	if err != nil {
		return r.failed(ctx, ws, err)
	}
	lc, found := clusters.cached(logicalcluster.Name(ws.Spec.Cluster))
	found = found && owns(ws, lc)
	start, started := r.starts.of(client.KeyOf(ws), ws.UID)
	age := r.now().Sub(start.when)
	switch {
	case found && (initialized(lc) || lc.DeletionTimestamp != nil):
		return r.follow(ctx, ws)
	case started && age < unremarkable:
		return reconcile.Result{RequeueAfter: unremarkable - age}, nil
	case found || started && start.created:
		_, err := r.write(ctx, ws, scheduled(ws))
		return reconcile.Result{}, err
	default:
		return r.schedule(ctx, ws)
	}
}

// schedule claims a logical cluster and creates it, or has its shard create it.
func (r *reconciler) schedule(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	parent, err := r.parent(logicalcluster.From(ws))
	if err != nil {
		// The shard may not have seen it yet. Without it there is no path.
		return reconcile.Result{}, fmt.Errorf("the logical cluster of the workspace has no LogicalCluster object: %w", err)
	}
	if parent.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // the Workspace will be deleted with it
	}
	in := facts{parent: parent, shards: r.shards(), known: r.known, types: r.waits.Types(client.KeyOf(ws), r.types), newName: newClusterName}
	if !claimed(ws) || !asks(ws, r.self) {
		updated, p := claim(ws, in)
		if p == nil {
			updated, p = ask(updated, in, r.self)
		}
		if p != nil {
			return r.refuse(ctx, ws, p)
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
		return r.refuse(ctx, ws, p)
	}
	if err := r.create(ctx, ws, lc, clusters); err != nil {
		return r.failed(ctx, ws, err)
	}
	klog.FromContext(ctx).V(2).Info("Created a logical cluster", "cluster", ws.Spec.Cluster, "shard", ws.Annotations[shardAnnotation])
	r.starts.note(client.KeyOf(ws), started{uid: ws.UID, when: r.now(), created: true})
	return reconcile.Result{RequeueAfter: unremarkable}, nil // the watch brings it back when it is Ready
}

// await waits for the logical cluster of a Workspace that its shard creates by itself. The
// watch tells of it. What does not come is asked for: whether the shard answers, and whether
// the name is another Workspace's there. It will then be that Workspace's whenever it is
// asked for, since the shard creates only what is not there.
func (r *reconciler) await(ctx context.Context, ws *tenancyv1alpha1.Workspace, clusters logicalClusters) (reconcile.Result, error) {
	key := client.KeyOf(ws)
	if _, asked := r.starts.of(key, ws.UID); !asked {
		r.starts.note(key, started{uid: ws.UID, when: r.now()})
		return reconcile.Result{RequeueAfter: unremarkable}, nil
	}
	lc, err := clusters.get(ctx, logicalcluster.Name(ws.Spec.Cluster))
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: observeTimeout}, nil
	case err != nil:
		return r.failed(ctx, ws, err)
	case !owns(ws, lc):
		return r.failed(ctx, ws, belongsToAnother(ws))
	default:
		_, err := r.write(ctx, ws, scheduled(ws))
		return reconcile.Result{}, err
	}
}

// create creates the LogicalCluster of a Workspace, or finds that it exists.
func (r *reconciler) create(ctx context.Context, ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster, clusters logicalClusters) error {
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
		return belongsToAnother(ws)
	}
	return nil
}

func belongsToAnother(ws *tenancyv1alpha1.Workspace) error {
	return fmt.Errorf("logical cluster %s belongs to another workspace: delete this one and create it again", ws.Spec.Cluster)
}

// follow keeps the Workspace true to its LogicalCluster.
func (r *reconciler) follow(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	clusters, err := r.at(ws.Annotations[shardAnnotation])
	if err != nil {
		return again(err)
	}
	lc, found := clusters.cached(logicalcluster.Name(ws.Spec.Cluster))
	if !found {
		return r.missing(ctx, ws, clusters)
	}
	if lc.DeletionTimestamp != nil {
		// Nobody can use the Workspace any more: it goes too.
		if err := r.remove(ctx, ws); err != nil && !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("deleting a workspace whose LogicalCluster is being deleted: %w", err)
		}
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, r.reflect(ctx, ws, lc)
}

// reflect writes what the LogicalCluster tells.
func (r *reconciler) reflect(ctx context.Context, ws *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) error {
	_, err := r.write(ctx, ws, label(mirror(ws, lc)))
	return err
}

// missing decides what it means that the watch does not know the LogicalCluster.
func (r *reconciler) missing(ctx context.Context, ws *tenancyv1alpha1.Workspace, clusters logicalClusters) (reconcile.Result, error) {
	if since := conditions.Get(ws, tenancyv1alpha1.WorkspaceScheduled); since != nil {
		if wait := since.LastTransitionTime.Add(observeTimeout).Sub(r.now()); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
	}
	lc, err := clusters.get(ctx, logicalcluster.Name(ws.Spec.Cluster))
	switch {
	case apierrors.IsNotFound(err):
		_, err = r.write(ctx, ws, label(disappeared(ws)))
		return reconcile.Result{}, err
	case err != nil:
		return again(err)
	default:
		// The watch is broken, or somebody took the label that it goes by.
		return reconcile.Result{RequeueAfter: observeTimeout}, r.reflect(ctx, ws, lc)
	}
}

// delete deletes the LogicalCluster, or has its shard delete it, waits for its end, and
// lets the Workspace go.
func (r *reconciler) delete(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	if !slices.Contains(ws.Finalizers, workspaceFinalizer) {
		return reconcile.Result{}, nil
	}
	cluster, shard := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation]), ws.Annotations[shardAnnotation]
	if cluster == "" || shard == "" {
		return r.release(ctx, ws) // nothing was ever created
	}
	clusters, err := r.at(shard)
	if err != nil {
		return r.stuck(ctx, ws, err)
	}
	lc, found := clusters.cached(cluster)
	if !found || clusters.isRemote() && lc.DeletionTimestamp == nil {
		// The watch may be behind, so ask before letting go. Of another shard, this also
		// finds out whether it answers.
		lc, err = clusters.get(ctx, cluster)
		if apierrors.IsNotFound(err) {
			return r.release(ctx, ws)
		}
		if err != nil {
			return r.stuck(ctx, ws, err)
		}
	}
	if !owns(ws, lc) {
		return r.release(ctx, ws) // not ours to delete
	}
	if lc.DeletionTimestamp == nil && !clusters.isRemote() {
		if err := clusters.remove(ctx, cluster, lc); err != nil {
			return r.stuck(ctx, ws, err)
		}
	}
	_, err = r.write(ctx, ws, label(mirror(ws, ending(lc))))
	if apierrors.IsNotFound(err) {
		err = nil
	}
	var next reconcile.Result
	if !found || lc.DeletionTimestamp == nil && clusters.isRemote() {
		next.RequeueAfter = observeTimeout // it may be away
	}
	return next, err
}

// release lets the Workspace go.
func (r *reconciler) release(ctx context.Context, ws *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	updated := ws.DeepCopy()
	updated.Finalizers = slices.DeleteFunc(updated.Finalizers, func(f string) bool { return f == workspaceFinalizer })
	_, err := r.write(ctx, ws, updated)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return reconcile.Result{}, err
}

// refuse tells why the Workspace is not scheduled. Shards, and types that it has asked
// for, bring it back when they come or change.
func (r *reconciler) refuse(ctx context.Context, ws *tenancyv1alpha1.Workspace, p *problem) (reconcile.Result, error) {
	if len(p.shards) > 0 {
		klog.FromContext(ctx).V(2).Info("No shard takes a workspace", "shards", p.shards)
	}
	_, err := r.write(ctx, ws, unscheduled(ws, p))
	return reconcile.Result{RequeueAfter: p.again}, err
}

// known tells what this process knows of a shard beside its object.
func (r *reconciler) known(shard *corev1alpha1.Shard) experience {
	return experience{claims: r.claims.of(shard.Name, r.now()), silent: r.silent(shard.Name)}
}

// failed tells that the logical cluster could not be created, and tries again.
func (r *reconciler) failed(ctx context.Context, ws *tenancyv1alpha1.Workspace, cause error) (reconcile.Result, error) {
	p := problemf(tenancyv1alpha1.WorkspaceReasonReasonUnknown, "cannot create the logical cluster on shard %q: %v", ws.Annotations[shardAnnotation], cause)
	if errors.Is(cause, peers.ErrUnreachable) {
		// Without the cause: it may be another one each time, and every change
		// of the message is a write.
		p = problemf(reasonShardUnreachable, "shard %q does not answer; it is asked again until it does", ws.Annotations[shardAnnotation])
	}
	if _, err := r.write(ctx, ws, unscheduled(ws, p)); err != nil {
		return reconcile.Result{}, err
	}
	return again(cause)
}

// stuck tells that the logical cluster cannot be deleted, and tries again.
func (r *reconciler) stuck(ctx context.Context, ws *tenancyv1alpha1.Workspace, cause error) (reconcile.Result, error) {
	updated := deleting(ws, tenancyv1alpha1.WorkspaceReasonReasonUnknown, "cannot delete the logical cluster on shard %q: %v", ws.Annotations[shardAnnotation], cause)
	if errors.Is(cause, peers.ErrUnreachable) {
		updated = deleting(ws, reasonShardUnreachable, "shard %q does not answer; it is asked again until it does", ws.Annotations[shardAnnotation])
	}
	if _, err := r.write(ctx, ws, updated); err != nil {
		return reconcile.Result{}, err
	}
	return again(cause)
}

// again tries again after cause, if any. A shard that does not answer is no failure of
// every single Workspace that waits for it: they come back one by one.
func again(cause error) (reconcile.Result, error) {
	if !errors.Is(cause, peers.ErrUnreachable) {
		return reconcile.Result{}, cause
	}
	return reconcile.Result{RequeueAfter: peers.OpenTimeout + rand.N(2*peers.OpenTimeout)}, nil
}

// write commits a change and remembers the answer until the informer has it.
func (r *reconciler) write(ctx context.Context, old, updated *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
	written, err := r.commit(ctx, old, address(updated, r.self))
	if written != nil && written.ResourceVersion != old.ResourceVersion {
		r.latest.Wrote(written)
	}
	return written, err
}
