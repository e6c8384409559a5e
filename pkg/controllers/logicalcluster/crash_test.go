package logicalcluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	"github.com/kcp-dev/sdk/apis/tenancy/termination"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/crash"
)

const (
	initializer = corev1alpha1.LogicalClusterInitializer("root:one")
	terminator  = corev1alpha1.LogicalClusterTerminator("root:two")
	foreign     = "example.com/keep"
)

// world is a shard with one logical cluster. The process may crash at each write of its two controllers.
type world struct {
	fake
	crash.Process

	t    *testing.T
	mu   sync.Mutex
	up   *logicalClusterReconciler
	down *deletionReconciler
	// started are initial objects, content the objects of users by resource, and ending children that delete themselves.
	started map[string]bool
	content map[string]int
	ending  int
}

var resources = []purge.Resource{
	{GroupVersionResource: kinds.Workspaces.GroupResource().WithVersion("v1alpha1")},
	{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}},
	{GroupVersionResource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}},
	{GroupVersionResource: kinds.Namespaces.GroupResource().WithVersion("v1")},
	{GroupVersionResource: kinds.CustomResourceDefinitions.GroupResource().WithVersion("v1")},
	{GroupVersionResource: kinds.ClusterRoleBindings.GroupResource().WithVersion("v1")},
	{GroupVersionResource: kinds.LogicalClusters.GroupResource().WithVersion("v1alpha1")},
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, started: map[string]bool{}, content: map[string]int{}}
	w.lc = newCluster(
		initializers([]corev1alpha1.LogicalClusterInitializer{tenancyv1alpha1.WorkspaceAPIBindingsInitializer, initializer}, nil),
		terminators([]corev1alpha1.LogicalClusterTerminator{terminator}, nil))
	w.lc.Finalizers = append(w.lc.Finalizers, foreign)
	w.lc.Annotations["experimental.tenancy.kcp.io/owner"] = `{"username":"alice"}`
	w.universal = true
	w.restart()
	return w
}

func (w *world) restart() {
	w.Restart()
	w.up = w.controller()
	w.up.now = func() time.Time { return time.Now().Add(time.Hour) }
	w.up.commit = w.commit
	w.up.namespaces.has = func(_ logicalcluster.Name, name string) bool { return w.has("namespace " + name) }
	w.up.namespaces.create = func(_ context.Context, _ logicalcluster.Name, name string) error { return w.start("namespace " + name) }
	w.up.hasBinding = func(_ logicalcluster.Name, name string) bool { return w.has("binding " + name) }
	w.up.createBinding = func(_ context.Context, _ logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
		return w.start("binding " + binding.Name)
	}
	w.up.defaults = startDefaults{w: w}
	w.down = w.deletionReconciler()
	w.down.commit = w.commit
	w.down.deleteContent = func(context.Context, logicalcluster.Name) result {
		return deleteContent(resources, nil, w.purge)
	}
}

func (w *world) write(do func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Write(do)
}

func (w *world) commit(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (written *corev1alpha1.LogicalCluster, err error) {
	if w.lc == nil || w.lc.ResourceVersion != old.ResourceVersion {
		return old, apierrors.NewConflict(kinds.LogicalClusters.GroupResource(), old.Name, errCannot)
	}
	if !changes(old, updated) {
		return updated, nil
	}
	if crashed := w.write(func() { written, err = w.fake.commit(ctx, old, updated) }); crashed != nil {
		return old, crashed
	}
	return written, err
}

func changes(old, updated *corev1alpha1.LogicalCluster) bool {
	probe := &fake{lc: old}
	_, _ = probe.commit(context.Background(), old, updated)
	return len(probe.log) > 0
}

func (w *world) has(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started[what]
}

func (w *world) start(what string) error {
	if w.has(what) {
		return nil
	}
	return w.write(func() { w.started[what] = true })
}

// startDefaults are default bindings that are bound immediately.
type startDefaults struct {
	noDefaults
	w *world
}

func (d startDefaults) Make(_ context.Context, lc *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, bool, error) {
	lc = lc.DeepCopy()
	if err := d.w.start("default bindings"); err != nil {
		return lc, false, err
	}
	lc.Status.Initializers = slices.DeleteFunc(lc.Status.Initializers, func(i corev1alpha1.LogicalClusterInitializer) bool {
		return i == tenancyv1alpha1.WorkspaceAPIBindingsInitializer
	})
	conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
	return lc, false, nil
}

// purge deletes one object at a time, and checks the order of stages.
func (w *world) purge(_ stage, of []purge.Resource) purge.Outcome {
	outcome := purge.Outcome{Remaining: map[schema.GroupVersionResource]int{}}
	for _, r := range of {
		for w.content[r.Resource] > 0 {
			err := w.write(func() {
				require.Equal(w.t, corev1alpha1.LogicalClusterPhaseDeleting, w.lc.Status.Phase)
				require.Empty(w.t, w.lc.Status.Terminators)
				for _, other := range resources {
					require.False(w.t, stageOf(other.GroupResource()) < stageOf(r.GroupResource()) && w.remaining(other) > 0, "%s must not be deleted before %s", r.Resource, other.Resource)
				}
				w.content[r.Resource]--
				if r.GroupResource() == kinds.Workspaces.GroupResource() {
					w.ending++
				}
			})
			if err != nil {
				outcome.Err = err
				return outcome
			}
		}
		if n := w.remaining(r); n > 0 {
			outcome.Remaining[r.GroupVersionResource] = n
		}
	}
	return outcome
}

func (w *world) remaining(r purge.Resource) int {
	if r.GroupResource() == kinds.Workspaces.GroupResource() {
		return w.content[r.Resource] + w.ending
	}
	return w.content[r.Resource]
}

// step runs both controllers, and then other components.
func (w *world) step() {
	w.t.Helper()
	for n := range 2 {
		run := w.up.reconcile
		if n == 1 {
			run = w.down.reconcile
		}
		_, err := run(w.t.Context(), key)
		if w.Ended() {
			require.ErrorIs(w.t, err, crash.Err)
			w.restart()
		} else {
			require.NoError(w.t, err)
		}
		w.check()
	}
	w.othersWork()
}

func (w *world) check() {
	w.t.Helper()
	if w.lc == nil {
		for _, r := range resources {
			require.Zero(w.t, w.remaining(r), r.Resource)
		}
		return
	}
	if w.lc.Status.Phase == corev1alpha1.LogicalClusterPhaseReady {
		for _, what := range []string{"namespace default", "namespace kube-system", "binding workspace-admin", "default bindings"} {
			require.True(w.t, w.started[what], "%s must exist before the logical cluster is Ready", what)
		}
	}
}

// othersWork simulates initializers and terminators, which find the object by its labels, children, and owners of other finalizers.
func (w *world) othersWork() {
	w.ending = 0
	if w.lc == nil {
		return
	}
	lc := w.lc.DeepCopy()
	if label, _ := initialization.InitializerToLabel(initializer); lc.Labels[label] != "" {
		lc.Status.Initializers = slices.DeleteFunc(lc.Status.Initializers, func(i corev1alpha1.LogicalClusterInitializer) bool { return i == initializer })
	}
	if label, _ := termination.TerminatorToLabel(terminator); lc.Labels[label] != "" {
		lc.Status.Terminators = nil
	}
	if slices.Equal(lc.Finalizers, []string{foreign}) && conditions.GetReason(lc, tenancyv1alpha1.WorkspaceContentDeleted) == reasonFinalizers {
		lc.Finalizers = nil
	}
	if changes(w.lc, lc) {
		_, err := w.fake.commit(w.t.Context(), w.lc, lc)
		require.NoError(w.t, err)
	}
}

func (w *world) state() *corev1alpha1.LogicalCluster {
	lc := w.lc.DeepCopy()
	lc.ResourceVersion = ""
	for i := range lc.Status.Conditions {
		lc.Status.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return lc
}

// TestRestartAfterEachWrite: a crash before or after each write, during creation and deletion, does not change the final state.
func TestRestartAfterEachWrite(t *testing.T) {
	play := func(t *testing.T, process crash.Process) (w *world, ready *corev1alpha1.LogicalCluster) {
		w = newWorld(t)
		w.Process = process
		for range 8 {
			w.step()
		}
		ready = w.state()
		require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, ready.Status.Phase)
		maps.Copy(w.content, map[string]int{"workspaces": 2, "secrets": 2, "widgets": 1, "namespaces": 2, "customresourcedefinitions": 1, "clusterrolebindings": 1})
		w.lc = w.lc.DeepCopy()
		w.lc.ResourceVersion = "of the deletion"
		deleted(time.Hour)(w.lc)
		for range 12 {
			w.step()
		}
		require.Nil(t, w.lc, "the logical cluster must be deleted")
		return w, ready
	}
	reference, ready := play(t, crash.Process{})
	require.Greater(t, reference.Calls, 18)
	require.Contains(t, ready.Finalizers, tenancy.ContentFinalizer)
	for point := 2; point < 2*reference.Calls+2; point++ {
		t.Run(fmt.Sprint("point ", point), func(t *testing.T) {
			w, state := play(t, crash.Point(point))
			require.Equal(t, ready, state)
			require.Zero(t, w.At, "the process must crash once")
		})
	}
}
