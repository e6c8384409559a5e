package logicalcluster

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

type fake struct {
	lc                            *corev1alpha1.LogicalCluster
	namespace, universal, claimed bool
	mu                            sync.Mutex // guards log
	version                       int
	log                           []string
}

var key = client.Key{Cluster: "abc", Name: corev1alpha1.LogicalClusterName}

func (f *fake) get(client.Key) (*corev1alpha1.LogicalCluster, error) {
	if f.lc == nil {
		return nil, apierrors.NewNotFound(kinds.LogicalClusters.GroupResource(), key.Name)
	}
	return f.lc, nil
}

func (f *fake) commit(_ context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	if equality.Semantic.DeepEqual(old, updated) {
		return updated, nil
	}
	what := "write"
	if !equality.Semantic.DeepEqual(old.Status, updated.Status) {
		what += " " + string(updated.Status.Phase)
	}
	f.log = append(f.log, what)
	f.version++
	f.lc = updated.DeepCopy()
	f.lc.ResourceVersion = strconv.Itoa(f.version + 1)
	if f.lc.DeletionTimestamp != nil && len(f.lc.Finalizers) == 0 {
		f.lc = nil
		return updated, nil
	}
	return f.lc, nil
}

// mustReconcile has a controller reconcile the LogicalCluster without an error.
func mustReconcile(t *testing.T, r interface {
	reconcile(ctx context.Context, key client.Key) (reconcile.Result, error)
}) reconcile.Result {
	t.Helper()
	result, err := r.reconcile(t.Context(), key)
	require.NoError(t, err)
	return result
}

func (f *fake) controller() *logicalClusterReconciler {
	return &logicalClusterReconciler{
		externalURL: "https://proxy",
		now:         time.Now, get: f.get,
		namespaces: &initialNamespaces{
			has: func(logicalcluster.Name, string) bool { return f.namespace },
			create: func(_ context.Context, _ logicalcluster.Name, name string) error {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.log = append(f.log, "create "+name)
				return nil
			},
			isUniversal: func(*corev1alpha1.LogicalCluster) (bool, error) { return f.universal, nil },
			turns:       reconcile.Turns[logicalcluster.Name]{Interval: time.Minute},
		},
		unreadable: func(context.Context, logicalcluster.Name) (string, error) { return "", nil },
		defaults:   noDefaults{}, writer: writer{commit: f.commit},
	}
}

type noDefaults struct{}

func (noDefaults) Make(_ context.Context, lc *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, bool, error) {
	return lc, false, nil
}

func (noDefaults) Note(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster { return lc }

func (noDefaults) Forget(logicalcluster.Name) {}

type waitingDefaults struct {
	noDefaults
	bound *bool
}

func (d waitingDefaults) Make(_ context.Context, lc *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, bool, error) {
	lc = lc.DeepCopy()
	if *d.bound {
		lc.Status.Initializers = nil
		conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized)
		return lc, false, nil
	}
	conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized, tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings, "Info", "not yet")
	return lc, false, nil
}

// TestDefaultBindingsCostNoWrite: default bindings that are bound quickly cause no additional write; otherwise, waiting is
// reported.
func TestDefaultBindingsCostNoWrite(t *testing.T) {
	own := []corev1alpha1.LogicalClusterInitializer{tenancyv1alpha1.WorkspaceAPIBindingsInitializer}
	for name, tc := range map[string]struct {
		initializers []corev1alpha1.LogicalClusterInitializer
		later        time.Duration
		want         []string
	}{
		"quick":              {initializers: own, want: []string{"write Ready"}},
		"slow":               {initializers: own, later: 2 * time.Second, want: []string{"write Initializing", "write Ready"}},
		"other initializers": {initializers: append([]corev1alpha1.LogicalClusterInitializer{"root:one"}, own...), want: []string{"write Initializing", "write Ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			bound := false
			f := &fake{lc: newCluster(initializers(tc.initializers, nil)), namespace: true}
			f.lc.CreationTimestamp = metav1.Now().Rfc3339Copy()
			r := f.controller()
			r.now = func() time.Time { return f.lc.CreationTimestamp.Add(tc.later + time.Millisecond) }
			r.defaults = waitingDefaults{bound: &bound}
			require.Equal(t, len(tc.want) == 1, mustReconcile(t, r).RequeueAfter > 0)
			bound = true
			mustReconcile(t, r)
			require.Equal(t, tc.want, f.log)
			require.True(t, conditions.IsTrue(f.lc, tenancyv1alpha1.WorkspaceAPIBindingsInitialized))
		})
	}
}

func TestInitialize(t *testing.T) {
	f := &fake{lc: newCluster()}
	r := f.controller()
	mustReconcile(t, r)
	require.Equal(t, []string{"create default", "write Ready"}, f.log, "the namespace must be created first")

	result := mustReconcile(t, r)
	require.Len(t, f.log, 2)
	require.Positive(t, result.RequeueAfter, "the namespace may not have been observed yet")

	f.namespace = true
	require.Equal(t, reconcile.Result{}, mustReconcile(t, r))
	require.Len(t, f.log, 2)

	f.namespace = false
	r.now = func() time.Time { return time.Now().Add(time.Hour) }
	mustReconcile(t, r)
	require.Equal(t, "create default", f.log[2], "a deleted namespace must be recreated")
}

func TestInitializeStopsWithoutNamespace(t *testing.T) {
	f := &fake{lc: newCluster()}
	r := f.controller()
	r.namespaces.create = func(context.Context, logicalcluster.Name, string) error { return errors.New("no") }
	_, err := r.reconcile(t.Context(), key)
	require.Error(t, err)
	require.Empty(t, f.log)
}

// TestUniversalNamespaces: logical clusters of the type universal have kube-system. Existing ones get it at a limited rate.
func TestUniversalNamespaces(t *testing.T) {
	f := &fake{lc: newCluster(), universal: true}
	mustReconcile(t, f.controller())
	require.ElementsMatch(t, []string{"create default", "create kube-system", "write Ready"}, f.log)
	require.Equal(t, "write Ready", f.log[2])

	f = &fake{lc: newCluster(phase("Ready")), universal: true}
	r := f.controller()
	require.Zero(t, r.namespaces.turns.Wait("another", time.Now()))
	require.Greater(t, mustReconcile(t, r).RequeueAfter, 50*time.Second, "the namespace must be created at a limited rate")
	require.NotContains(t, f.log, "create kube-system")
	r.now = func() time.Time { return time.Now().Add(time.Hour) }
	mustReconcile(t, r)
	require.Contains(t, f.log, "create kube-system")

	f = &fake{lc: newCluster(phase("Ready"), inactive), universal: true}
	r = f.controller()
	errNot := errors.New("not yet")
	for _, spoil := range []func(){
		func() {
			r.namespaces.create = func(context.Context, logicalcluster.Name, string) error { return errNot }
		},
		func() {
			r.namespaces.isUniversal = func(*corev1alpha1.LogicalCluster) (bool, error) { return false, errNot }
		},
	} {
		spoil()
		_, err := r.reconcile(t.Context(), key)
		require.ErrorIs(t, err, errNot)
		require.Equal(t, corev1alpha1.LogicalClusterPhaseInactive, f.lc.Status.Phase)
	}
}

func TestOtherNamesAreIgnored(t *testing.T) {
	f := &fake{lc: newCluster()}
	f.lc.Name = "another"
	_, err := f.controller().reconcile(t.Context(), client.Key{Cluster: key.Cluster, Name: "another"})
	require.NoError(t, err)
	require.Empty(t, f.log)
}

func deleted(ago time.Duration) func(*corev1alpha1.LogicalCluster) {
	return func(lc *corev1alpha1.LogicalCluster) { lc.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-ago)} }
}

func (f *fake) deletionReconciler(results ...result) *deletionReconciler {
	return &deletionReconciler{
		now: time.Now, get: f.get,
		live: func(_ context.Context, key client.Key) (*corev1alpha1.LogicalCluster, error) { return f.get(key) },
		deleteContent: func(context.Context, logicalcluster.Name) result {
			f.log = append(f.log, "delete content")
			next := results[0]
			results = results[1:]
			return next
		},
		claimed: func(logicalcluster.Name) bool { return f.claimed },
		writer:  writer{commit: f.commit},
	}
}

func TestDelete(t *testing.T) {
	f := &fake{lc: newCluster(phase("Ready"), deleted(0))}
	remaining := result{reason: reasonRemaining, detail: "two objects"}
	r := f.deletionReconciler(result{reason: reasonRemaining, inProgress: true}, remaining, result{reason: reasonDeletionFailed, err: errors.New("no")}, result{})

	require.Positive(t, mustReconcile(t, r).RequeueAfter)
	require.Equal(t, []string{"write Deleting", "delete content"}, f.log, "the phase, which rejects writes, must be written before the content is deleted")

	require.True(t, mustReconcile(t, r).Backoff)
	require.Equal(t, "two objects", conditions.GetMessage(f.lc, tenancyv1alpha1.WorkspaceContentDeleted))
	require.Equal(t, "Deleting", f.lc.Labels[tenancyv1alpha1.WorkspacePhaseLabel])

	_, err := r.reconcile(t.Context(), key)
	require.Error(t, err)
	require.Equal(t, reasonDeletionFailed, conditions.GetReason(f.lc, tenancyv1alpha1.WorkspaceContentDeleted))

	mustReconcile(t, r)
	require.Nil(t, f.lc)
}

// TestDeleteReadsTheServer: content is deleted only if the LogicalCluster is being deleted according to the server.
func TestDeleteReadsTheServer(t *testing.T) {
	for name, live := range map[string]*corev1alpha1.LogicalCluster{
		"deleted":  nil,
		"restored": newCluster(phase("Ready"), func(lc *corev1alpha1.LogicalCluster) { lc.UID = "restored" }),
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{lc: newCluster(phase("Deleting"), deleted(0))}
			r := f.deletionReconciler(result{})
			r.live = func(_ context.Context, key client.Key) (*corev1alpha1.LogicalCluster, error) {
				return (&fake{lc: live}).get(key)
			}
			mustReconcile(t, r)
			require.NotContains(t, f.log, "delete content")
		})
	}
}

func TestDeleteReportsProgress(t *testing.T) {
	f := &fake{lc: newCluster(phase("Deleting"), deleted(time.Minute))}
	mustReconcile(t, f.deletionReconciler(result{reason: reasonRemaining, detail: "a namespace", inProgress: true}))
	require.Equal(t, "a namespace", conditions.GetMessage(f.lc, tenancyv1alpha1.WorkspaceContentDeleted))
}

// TestDeleteReportsFinalizers: a LogicalCluster without content reports remaining finalizers.
func TestDeleteReportsFinalizers(t *testing.T) {
	f := &fake{lc: newCluster(phase("Deleting"), deleted(0), func(lc *corev1alpha1.LogicalCluster) {
		lc.Finalizers = append(lc.Finalizers, "example.com/keep", "example.com/too")
	})}
	const content = "the content is deleted; waiting for finalizers of the LogicalCluster: "
	r := f.deletionReconciler(result{})
	for _, step := range []struct {
		finalizers []string
		message    string
	}{
		{f.lc.Finalizers, content + "example.com/keep, example.com/too"},
		{[]string{"example.com/too"}, content + "example.com/too"},
	} {
		f.lc.Finalizers = step.finalizers
		mustReconcile(t, r)
		require.NotContains(t, f.lc.Finalizers, tenancy.ContentFinalizer)
		require.Equal(t, reasonFinalizers, conditions.GetReason(f.lc, tenancyv1alpha1.WorkspaceContentDeleted))
		require.Equal(t, step.message, conditions.GetMessage(f.lc, tenancyv1alpha1.WorkspaceContentDeleted))
	}
}

// TestDeleteWaitsForProviders: the content, including bindings, is retained while a provider has a finalizer, which it
// could not remove without the binding.
func TestDeleteWaitsForProviders(t *testing.T) {
	f := &fake{claimed: true, lc: newCluster(phase("Deleting"), deleted(0), func(lc *corev1alpha1.LogicalCluster) {
		lc.Finalizers = append(lc.Finalizers, "example.com/keep")
	})}
	r := f.deletionReconciler(result{})
	require.True(t, mustReconcile(t, r).Backoff, "no event reports that a claim is rejected")
	require.NotContains(t, f.log, "delete content")
	require.Equal(t, reasonFinalizers, conditions.GetReason(f.lc, tenancyv1alpha1.WorkspaceContentDeleted))
	require.Contains(t, conditions.GetMessage(f.lc, tenancyv1alpha1.WorkspaceContentDeleted), "which an APIBinding allows the provider to set: example.com/keep")

	f.claimed = false
	mustReconcile(t, r)
	require.Contains(t, f.log, "delete content")
	require.Equal(t, []string{"example.com/keep"}, f.lc.Finalizers)

	lets := &apisv1alpha2.APIBinding{}
	require.False(t, mayWriteLogicalCluster(lets))
	claim := apisv1alpha2.PermissionClaim{GroupResource: apisv1alpha2.GroupResource{Group: "core.kcp.io", Resource: "logicalclusters"}, Verbs: []string{"get", "list"}}
	lets.Status.AppliedPermissionClaims = []apisv1alpha2.ScopedPermissionClaim{{PermissionClaim: claim}}
	require.False(t, mayWriteLogicalCluster(lets), "a read-only claim must not delay the deletion")
	lets.Status.AppliedPermissionClaims[0].Verbs = []string{"get", "patch"}
	require.True(t, mayWriteLogicalCluster(lets))
	lets.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	require.False(t, mayWriteLogicalCluster(lets))
}

func TestDeleteWaitsForTerminators(t *testing.T) {
	f := &fake{lc: newCluster(phase("Ready"), deleted(0), terminators([]corev1alpha1.LogicalClusterTerminator{"a:b"}, nil))}
	r := f.deletionReconciler(result{})
	mustReconcile(t, r)
	require.Equal(t, corev1alpha1.LogicalClusterPhaseTerminating, f.lc.Status.Phase)
	require.NotContains(t, f.log, "delete content")
	require.Equal(t, "waiting for terminators: [a:b]", conditions.GetMessage(f.lc, tenancyv1alpha1.WorkspaceContentDeleted))

	f.lc = f.lc.DeepCopy()
	f.lc.Status.Terminators = nil
	f.lc.ResourceVersion = "100"
	mustReconcile(t, r)
	require.Nil(t, f.lc)
}

// TestDeletionRequiresTimestampAndFinalizer: other logical clusters are not changed.
func TestDeletionRequiresTimestampAndFinalizer(t *testing.T) {
	for name, lc := range map[string]*corev1alpha1.LogicalCluster{
		"alive":             newCluster(phase("Ready")),
		"without finalizer": newCluster(phase("Ready"), deleted(0), func(lc *corev1alpha1.LogicalCluster) { lc.Finalizers = []string{"other"} }),
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{lc: lc}
			mustReconcile(t, f.deletionReconciler())
			require.Empty(t, f.log)
		})
	}
}

func TestDeleteContentInStages(t *testing.T) {
	resource := func(group, name string) purge.Resource {
		return purge.Resource{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: name}}
	}
	resources := []purge.Resource{
		resource("apiextensions.k8s.io", "customresourcedefinitions"), resource("", "namespaces"), resource("", "secrets"),
		resource("rbac.authorization.k8s.io", "clusterrolebindings"), resource("rbac.authorization.k8s.io", "clusterroles"), resource("rbac.authorization.k8s.io", "roles"),
		resource("core.kcp.io", "logicalclusters"), resource("tenancy.kcp.io", "workspaces"), resource("example.com", "workspaces"),
	}
	const definition, bindings, roles = "customresourcedefinitions.apiextensions.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io clusterroles.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io"
	all := []string{
		"workspaces.tenancy.kcp.io", "secrets " + roles + " workspaces.example.com", "namespaces", definition, bindings,
		definition + " namespaces secrets " + bindings + " " + roles + " workspaces.tenancy.kcp.io workspaces.example.com",
	}
	remaining := purge.Outcome{Remaining: map[schema.GroupVersionResource]int{{Version: "v1", Resource: "x"}: 2}}
	waiting := purge.Outcome{Remaining: remaining.Remaining, Finalizers: map[string]int{"f": 1}}
	unbinding := purge.Outcome{Remaining: remaining.Remaining, Finalizers: map[string]int{"apis.kcp.io/apibinding-finalizer": 1}}
	for name, tc := range map[string]struct {
		outcomes  []purge.Outcome
		discovery error
		want      result
		stages    int
	}{
		"no remaining objects": {outcomes: make([]purge.Outcome, 6), stages: 6},
		"bindings remain":      {outcomes: []purge.Outcome{{}, unbinding}, stages: 2, want: result{reason: reasonRemaining, detail: "x has 2 objects; waiting for finalizers: apis.kcp.io/apibinding-finalizer in 1 objects", inProgress: true}},
		"new objects":          {outcomes: []purge.Outcome{{}, {}, {}, {}, {}, remaining}, stages: 6, want: result{reason: reasonRemaining, detail: "x has 2 objects", inProgress: true}},
		"children remain":      {outcomes: []purge.Outcome{waiting}, stages: 1, want: result{reason: reasonRemaining, detail: "x has 2 objects; waiting for finalizers: f in 1 objects"}},
		"namespaces remain":    {outcomes: []purge.Outcome{{}, {}, remaining}, stages: 3, want: result{reason: reasonRemaining, detail: "x has 2 objects", inProgress: true}},
		"failed deletion":      {outcomes: []purge.Outcome{{}, {Err: errCannot}}, stages: 2, want: result{reason: reasonDeletionFailed, detail: errCannot.Error(), err: errCannot}},
		"failed discovery":     {discovery: errCannot, want: result{reason: reasonDiscoveryFailed, detail: errCannot.Error(), err: errCannot}},
	} {
		t.Run(name, func(t *testing.T) {
			var stages []string
			got := deleteContent(resources, tc.discovery, func(_ stage, stage []purge.Resource) purge.Outcome {
				names := make([]string, 0, len(stage))
				for _, r := range stage {
					names = append(names, r.GroupResource().String())
				}
				stages = append(stages, strings.Join(names, " "))
				return tc.outcomes[len(stages)-1]
			})
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.want.reason == "", got.done())
			require.Equal(t, all[:tc.stages], append([]string{}, stages...))
		})
	}
}

var errCannot = errors.New("cannot")

// TestObjectsReadable: unreadable objects are reported until they can be read.
func TestObjectsReadable(t *testing.T) {
	f := &fake{lc: newCluster(), namespace: true}
	r := f.controller()
	description := ""
	r.unreadable = func(context.Context, logicalcluster.Name) (string, error) { return description, nil }
	mustReconcile(t, r)
	require.Nil(t, conditions.Get(f.lc, objectsReadable))

	description = "widgets.example.com default/large: too large"
	require.Equal(t, recheck, mustReconcile(t, r).RequeueAfter, "no event reports that the objects were deleted")
	require.True(t, conditions.IsFalse(f.lc, objectsReadable))
	require.Equal(t, description, conditions.GetMessage(f.lc, objectsReadable))

	description = ""
	mustReconcile(t, r)
	require.True(t, conditions.IsTrue(f.lc, objectsReadable))
}
