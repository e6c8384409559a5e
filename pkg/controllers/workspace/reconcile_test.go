package workspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/crash"
	"github.com/shardplane/shardplane/test/documented"
)

// fake is a shard with one Workspace, and the shard of its logical cluster. The process may crash at each write.
type fake struct {
	crash.Process

	// events are the recorded Events.
	events []notice

	t       *testing.T
	ws      *tenancyv1alpha1.Workspace
	version int

	clusters map[logicalcluster.Name]*corev1alpha1.LogicalCluster
	// blind disables the watch of logical clusters.
	blind bool
	// down makes the shard of logical clusters unreachable.
	down bool
	// placing makes the other shard create and delete logical clusters. Writes of the Workspace's shard fail the test.
	placing bool
	// used makes logical clusters contain data of users.
	used bool

	log []string
}

func newFake(t *testing.T) *fake {
	t.Helper()
	return &fake{t: t, ws: newWorkspace("w"), clusters: map[logicalcluster.Name]*corev1alpha1.LogicalCluster{}, version: 1}
}

func (f *fake) write(what string, do func()) error {
	return f.Write(func() {
		f.log = append(f.log, what)
		do()
	})
}

func (f *fake) cached(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
	lc, ok := f.clusters[cluster]
	return lc, ok && !f.blind
}

func (f *fake) get(_ context.Context, cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	if f.down {
		return nil, peers.ErrUnreachable
	}
	if lc, ok := f.clusters[cluster]; ok {
		return lc, nil
	}
	return nil, apierrors.NewNotFound(kinds.LogicalClusters.GroupResource(), "cluster")
}

func (f *fake) create(_ context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	if f.down {
		return fmt.Errorf("%w: connection refused", peers.ErrUnreachable)
	}
	if _, ok := f.clusters[cluster]; ok {
		return apierrors.NewAlreadyExists(kinds.LogicalClusters.GroupResource(), "cluster")
	}
	return f.write("create logical cluster", func() { f.clusters[cluster] = lc })
}

func (f *fake) remove(_ context.Context, cluster logicalcluster.Name, _ *corev1alpha1.LogicalCluster) error {
	if f.down {
		return peers.ErrUnreachable
	}
	return f.write("delete logical cluster", func() {
		f.clusters[cluster] = f.clusters[cluster].DeepCopy()
		f.clusters[cluster].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	})
}

func (f *fake) unused(context.Context, logicalcluster.Name) (bool, error) { return !f.used, nil }

func (f *fake) owned(key client.Key) []*corev1alpha1.LogicalCluster {
	var found []*corev1alpha1.LogicalCluster
	for name, lc := range f.clusters {
		if owner, ok := ownerOf(lc); ok && owner == key && !f.blind {
			lc = lc.DeepCopy()
			lc.Annotations[logicalcluster.AnnotationKey] = name.String()
			found = append(found, lc)
		}
	}
	return found
}

func (f *fake) process() *workspaceReconciler {
	return &workspaceReconciler{
		self: "here", orphans: newOrphans(nil),
		now: func() time.Time { return time.Now().Add(time.Hour) },
		get: func(key client.Key) (*tenancyv1alpha1.Workspace, error) {
			if f.ws == nil {
				return nil, apierrors.NewNotFound(kinds.Workspaces.GroupResource(), key.Name)
			}
			return f.ws, nil
		},
		parent: func(logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) { return organization(), nil },
		shards: func() []*corev1alpha1.Shard { return []*corev1alpha1.Shard{shard("a"), shard("b")} },
		silent: func(string) bool { return false },
		types:  shippedTypes(f.t),
		at:     func(string) (logicalClusters, error) { return f.there(), nil },
		commit: func(_ context.Context, old, updated *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
			probe := updated.DeepCopy()
			probe.ResourceVersion = old.ResourceVersion
			if equality.Semantic.DeepEqual(probe, old) {
				return updated, nil
			}
			if old.ResourceVersion != f.ws.ResourceVersion {
				return old, apierrors.NewConflict(kinds.Workspaces.GroupResource(), old.Name, errors.New("changed"))
			}
			written := updated.DeepCopy()
			err := f.write("write workspace", func() {
				f.version++
				written.ResourceVersion = strconv.Itoa(f.version)
				f.ws = written
				if written.DeletionTimestamp != nil && len(written.Finalizers) == 0 {
					f.ws = nil
				}
			})
			if err != nil {
				return old, err
			}
			return written, nil
		},
		event: func(_ context.Context, _ *tenancyv1alpha1.Workspace, w notice) error {
			f.events = append(f.events, w)
			return nil
		},
		localClusters: f,
		owned: func(key client.Key) []*corev1alpha1.LogicalCluster {
			if f.placing {
				return nil // on the other shard
			}
			return f.owned(key)
		},
		exists: func(_ context.Context, _ client.Key, uid types.UID) (bool, error) {
			return f.ws != nil && f.ws.UID == uid, nil
		},
		remove: func(context.Context, *tenancyv1alpha1.Workspace) error {
			return f.write("delete workspace", func() { f.delete() })
		},
	}
}

func (f *fake) delete() {
	f.version++
	f.ws = f.ws.DeepCopy()
	f.ws.ResourceVersion = strconv.Itoa(f.version)
	f.ws.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
}

var key = client.Key{Cluster: "parent", Name: "w"}

func (f *fake) reconcile(r *workspaceReconciler) (reconcile.Result, error) {
	return r.reconcile(f.t.Context(), key)
}

// sync is reconcile that must not fail.
func (f *fake) sync(r *workspaceReconciler) reconcile.Result {
	f.t.Helper()
	result, err := f.reconcile(r)
	require.NoError(f.t, err)
	return result
}

func (f *fake) othersWork() {
	for name, lc := range f.clusters {
		if lc.DeletionTimestamp != nil {
			delete(f.clusters, name)
			continue
		}
		lc = lc.DeepCopy()
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
		f.clusters[name] = lc
	}
}

func TestWorkspaceBecomesReadyWithFewWrites(t *testing.T) {
	f := newFake(t)
	r := f.process()
	require.Positive(t, f.sync(r).RequeueAfter, "the reconcile must be repeated if no event is received")
	for range 3 {
		f.sync(r) // own writes cause events, and the watch may be late
	}
	f.othersWork()
	f.sync(r)
	require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, f.ws.Status.Phase)
	require.True(t, conditions.IsTrue(f.ws, tenancyv1alpha1.WorkspaceScheduled))
	require.Equal(t, "Ready", f.ws.Labels[tenancyv1alpha1.WorkspacePhaseLabel])
	require.Equal(t, []string{
		"write workspace",        // the claim
		"create logical cluster", //
		"write workspace",        // Ready
	}, f.log)
	f.sync(r)
	require.Len(t, f.log, 3, "a Ready workspace must not be written")
	require.Nil(t, r.starts.get(client.KeyOf(f.ws)))
}

func TestSlowWorkspaceIsInitializing(t *testing.T) {
	for name, blind := range map[string]bool{"observed": false, "not observed": true} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.blind = blind
			r := f.process()
			f.sync(r)
			require.Empty(t, f.ws.Status.Phase)
			r.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
			f.sync(r)
			require.Equal(t, corev1alpha1.LogicalClusterPhaseInitializing, f.ws.Status.Phase)
			require.True(t, conditions.IsTrue(f.ws, tenancyv1alpha1.WorkspaceScheduled))
		})
	}
	t.Run("with initializers", func(t *testing.T) {
		f := newFake(t)
		r := f.process()
		f.sync(r)
		lc := f.clusters[logicalcluster.Name(f.ws.Spec.Cluster)]
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
		lc.Status.Initializers = []corev1alpha1.LogicalClusterInitializer{"a:b"}
		f.sync(r)
		require.Equal(t, corev1alpha1.LogicalClusterPhaseInitializing, f.ws.Status.Phase)
		require.Equal(t, lc.Status.Initializers, f.ws.Status.Initializers)
	})
}

// TestRestartAfterEachWrite: the process crashes before or after each write, during creation and deletion, and a new
// one continues. The logical cluster is local, or the other shard, which also crashes, creates it on request.
func TestRestartAfterEachWrite(t *testing.T) {
	for point := 2; point < 14; point++ {
		for _, placing := range []bool{false, true} {
			t.Run(fmt.Sprintf("point %d, placing: %t", point, placing), func(t *testing.T) {
				f := newFake(t)
				f.placing, f.Process = placing, crash.Point(point)
				created := map[logicalcluster.Name]bool{}
				r := f.process()
				step := func() {
					_, err := f.reconcile(r)
					if errors.Is(err, crash.Err) {
						f.Restart()
						r = f.process()
					} else {
						require.NoError(t, err)
					}
					if f.placing && f.ws != nil {
						target, _ := f.target()
						if _, err := target.reconcile(t.Context(), requested); errors.Is(err, crash.Err) {
							f.Restart()
						} else {
							require.NoError(t, err)
						}
					}
					for name := range f.clusters {
						created[name] = true
					}
					f.othersWork()
				}
				for range 6 {
					step()
				}
				require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, f.ws.Status.Phase)
				require.Len(t, created, 1, "a workspace must have one logical cluster")
				f.delete()
				for range 6 {
					step()
				}
				require.Nil(t, f.ws, "the workspace must be deleted")
				require.Empty(t, f.clusters, "the logical cluster must be deleted")
				require.Len(t, created, 1)
				require.Zero(t, f.At, "the process must crash once")
			})
		}
	}
}

func TestUnreachableShardIsRetried(t *testing.T) {
	f := newFake(t)
	f.down = true
	r := f.process()
	require.Positive(t, f.sync(r).RequeueAfter)
	require.Equal(t, reasonShardUnreachable, conditions.GetReason(f.ws, tenancyv1alpha1.WorkspaceScheduled))
	writes := len(f.log)
	f.sync(r)
	require.Len(t, f.log, writes, "an unchanged condition must not be written again")

	f.down = false
	for range 2 {
		f.sync(r)
		f.othersWork()
	}
	require.True(t, conditions.IsTrue(f.ws, tenancyv1alpha1.WorkspaceScheduled))

	f.delete()
	f.down = true
	f.blind = true
	require.Positive(t, f.sync(r).RequeueAfter)
	require.Equal(t, reasonShardUnreachable, conditions.GetReason(f.ws, tenancyv1alpha1.WorkspaceContentDeleted))
	require.Contains(t, f.ws.Finalizers, workspaceFinalizer)
}

func TestUnschedulableWorkspaceWaits(t *testing.T) {
	f := newFake(t)
	r := f.process()
	r.shards = func() []*corev1alpha1.Shard { return []*corev1alpha1.Shard{shard("a", unschedulable)} }
	require.Equal(t, reconcile.Result{}, f.sync(r), "events of shards requeue the workspace")
	require.Equal(t, tenancyv1alpha1.WorkspaceReasonUnschedulable, conditions.GetReason(f.ws, tenancyv1alpha1.WorkspaceScheduled))
	require.Empty(t, f.ws.Finalizers)
	f.delete()
	f.sync(r)
	require.Empty(t, f.clusters)
}

func TestForeignLogicalClusterIsRetained(t *testing.T) {
	f := newFake(t)
	r := f.process()
	foreign := &corev1alpha1.LogicalCluster{Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{UID: "foreign"}}}
	f.ws.Annotations[tenancy.ClusterAnnotation], f.ws.Annotations[shardAnnotation] = "taken", "a"
	f.clusters["taken"] = foreign
	_, err := f.reconcile(r)
	require.ErrorContains(t, err, "belongs to another workspace")
	require.Contains(t, conditions.GetMessage(f.ws, tenancyv1alpha1.WorkspaceScheduled), "belongs to another workspace")
	f.delete()
	f.sync(r)
	require.Nil(t, f.ws)
	require.Nil(t, f.clusters["taken"].DeletionTimestamp)
}

var errCannot = errors.New("cannot")

func TestLogicalClusterStatusIsMirrored(t *testing.T) {
	ready := func(t *testing.T) (*fake, *workspaceReconciler) {
		f := newFake(t)
		r := f.process()
		for range 2 {
			f.sync(r)
			f.othersWork()
		}
		f.sync(r)
		require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, f.ws.Status.Phase)
		return f, r
	}
	name := func(f *fake) logicalcluster.Name { return logicalcluster.Name(f.ws.Spec.Cluster) }

	t.Run("deleted: the workspace is deleted", func(t *testing.T) {
		f, r := ready(t)
		require.NoError(t, f.remove(t.Context(), name(f), nil))
		f.sync(r)
		require.NotNil(t, f.ws.DeletionTimestamp)
	})
	t.Run("disappeared: the workspace is unavailable and retained", func(t *testing.T) {
		f, r := ready(t)
		delete(f.clusters, name(f))
		f.sync(r)
		require.Nil(t, f.ws.DeletionTimestamp)
		require.Equal(t, corev1alpha1.LogicalClusterPhaseUnavailable, f.ws.Status.Phase)
		require.Equal(t, tenancyv1alpha1.WorkspaceInitializedWorkspaceDisappeared, conditions.GetReason(f.ws, tenancyv1alpha1.WorkspaceInitialized))
	})
	t.Run("not observed: the workspace does not change", func(t *testing.T) {
		f, r := ready(t)
		f.blind = true
		require.Positive(t, f.sync(r).RequeueAfter)
		require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, f.ws.Status.Phase)
	})
	t.Run("not observed while deleting: it is read from the server", func(t *testing.T) {
		f, r := ready(t)
		f.blind = true
		f.delete()
		f.sync(r)
		require.Contains(t, f.ws.Finalizers, workspaceFinalizer)
		require.True(t, slices.Contains(f.log, "delete logical cluster"))
		f.othersWork()
		f.sync(r)
		require.Nil(t, f.ws)
	})
	t.Run("mounted: no logical cluster", func(t *testing.T) {
		f := newFake(t)
		f.ws.Spec.Mount = &tenancyv1alpha1.Mount{}
		f.sync(f.process())
		require.Empty(t, f.log)
	})
}

// TestDocumented: the documentation contains all reasons of the conditions, except those of the LogicalCluster.
func TestDocumented(t *testing.T) {
	none, unknown := factsOf(t), factsOf(t, shard("a"))
	unknown.types = func(logicalcluster.Path, tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		return nil, false
	}
	initializing := &corev1alpha1.LogicalCluster{Status: corev1alpha1.LogicalClusterStatus{Initializers: []corev1alpha1.LogicalClusterInitializer{"a:b"}}}
	reported := documented.Reported(mirror(newWorkspace("w"), initializing), markUnavailable(newWorkspace("w")))
	for _, in := range []facts{none, unknown} {
		_, p := claim(newWorkspace("w"), in)
		reported = append(reported, documented.Reported(withProblem(newWorkspace("w"), tenancyv1alpha1.WorkspaceScheduled, p))...)
	}
	for _, cause := range []error{peers.ErrUnreachable, errors.New("rejected")} {
		f := newFake(t)
		r := f.process()
		_, _ = r.failed(t.Context(), f.ws, cause)
		f.ws.DeletionTimestamp, f.ws.Finalizers = &metav1.Time{}, []string{workspaceFinalizer}
		_, _ = r.failed(t.Context(), f.ws, cause)
		reported = append(reported, documented.Reported(f.ws)...)
	}
	require.ElementsMatch(t, documented.Conditions(t, "Workspace"), reported)
}
