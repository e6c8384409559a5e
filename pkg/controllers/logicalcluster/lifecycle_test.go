package logicalcluster

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	"github.com/kcp-dev/sdk/apis/tenancy/termination"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/documented"
)

func newCluster(changes ...func(*corev1alpha1.LogicalCluster)) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName, UID: "u", ResourceVersion: "1",
		Annotations: map[string]string{logicalcluster.AnnotationKey: "abc", "kcp.io/path": "root:a"},
		Finalizers:  []string{tenancy.ContentFinalizer},
	}}
	for _, change := range changes {
		change(lc)
	}
	return lc
}

func phase(p corev1alpha1.LogicalClusterPhaseType) func(*corev1alpha1.LogicalCluster) {
	return func(lc *corev1alpha1.LogicalCluster) { lc.Status.Phase = p }
}

func initializers(spec, status []corev1alpha1.LogicalClusterInitializer) func(*corev1alpha1.LogicalCluster) {
	return func(lc *corev1alpha1.LogicalCluster) { lc.Spec.Initializers, lc.Status.Initializers = spec, status }
}

func terminators(spec, status []corev1alpha1.LogicalClusterTerminator) func(*corev1alpha1.LogicalCluster) {
	return func(lc *corev1alpha1.LogicalCluster) { lc.Spec.Terminators, lc.Status.Terminators = spec, status }
}

func inactive(lc *corev1alpha1.LogicalCluster) {
	lc.Annotations[corev1alpha1.LogicalClusterInactiveAnnotationKey] = "true"
}

func TestAdvance(t *testing.T) {
	one := []corev1alpha1.LogicalClusterInitializer{"root:one"}
	for name, tc := range map[string]struct {
		lc           *corev1alpha1.LogicalCluster
		want         corev1alpha1.LogicalClusterPhaseType
		initializers []corev1alpha1.LogicalClusterInitializer
		initialized  corev1.ConditionStatus
	}{
		"new":                      {lc: newCluster(), want: "Ready", initialized: corev1.ConditionTrue},
		"new, defaulted phase":     {lc: newCluster(phase("Scheduling")), want: "Ready", initialized: corev1.ConditionTrue},
		"new with initializers":    {lc: newCluster(initializers(one, nil)), want: "Initializing", initializers: one, initialized: corev1.ConditionFalse},
		"remaining initializers":   {lc: newCluster(phase("Initializing"), initializers(one, one)), want: "Initializing", initializers: one, initialized: corev1.ConditionFalse},
		"last initializer removed": {lc: newCluster(phase("Initializing"), initializers(one, nil)), want: "Ready", initialized: corev1.ConditionTrue},
		"ready":                    {lc: newCluster(phase("Ready")), want: "Ready"},
		"deactivated":              {lc: newCluster(phase("Ready"), inactive), want: "Inactive"},
		"activated":                {lc: newCluster(phase("Inactive")), want: "Ready"},
		"unavailable":              {lc: newCluster(phase("Unavailable")), want: "Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			got := advance(tc.lc, "https://proxy/")
			require.Equal(t, tc.want, got.Status.Phase)
			require.Equal(t, tc.initializers, got.Status.Initializers)
			require.Equal(t, "https://proxy/clusters/root:a", got.Status.URL)
			require.Equal(t, tc.lc.ObjectMeta, got.ObjectMeta)
			if c := conditions.Get(got, tenancyv1alpha1.WorkspaceInitialized); tc.initialized != "" {
				require.Equal(t, tc.initialized, c.Status)
			} else {
				require.Nil(t, c)
			}
			require.Equal(t, got, advance(got, "https://proxy"), "advance must be idempotent")
		})
	}
	ending := []corev1alpha1.LogicalClusterTerminator{"root:one"}
	require.Equal(t, ending, advance(newCluster(terminators(ending, nil)), "https://proxy").Status.Terminators, "terminators must be set during the initialization")
	unreachable := newCluster()
	delete(unreachable.Annotations, "kcp.io/path")
	require.Equal(t, "https://proxy/clusters/abc", advance(unreachable, "https://proxy").Status.URL)
}

func TestTerminate(t *testing.T) {
	one := []corev1alpha1.LogicalClusterTerminator{"root:one"}
	for name, tc := range map[string]struct {
		lc   *corev1alpha1.LogicalCluster
		want corev1alpha1.LogicalClusterPhaseType
	}{
		"without terminators":     {lc: newCluster(phase("Ready")), want: "Deleting"},
		"with terminators":        {lc: newCluster(phase("Ready"), terminators(one, nil)), want: "Terminating"},
		"deleted before ready":    {lc: newCluster(terminators(one, nil)), want: "Terminating"},
		"remaining terminators":   {lc: newCluster(phase("Terminating"), terminators(one, one)), want: "Terminating"},
		"last terminator removed": {lc: newCluster(phase("Terminating"), terminators(one, nil)), want: "Deleting"},
		"inactive":                {lc: newCluster(phase("Inactive"), inactive), want: "Deleting"},
		"deleting":                {lc: newCluster(phase("Deleting"), terminators(one, nil)), want: "Deleting"},
	} {
		t.Run(name, func(t *testing.T) {
			got := terminate(tc.lc)
			require.Equal(t, tc.want, got.Status.Phase)
			require.False(t, corev1alpha1.IsLogicalClusterInactive(got.Annotations))
			require.Equal(t, got, terminate(got), "terminate must be idempotent")
		})
	}
}

func TestLabel(t *testing.T) {
	lc := newCluster(phase("Terminating"),
		initializers(nil, []corev1alpha1.LogicalClusterInitializer{"a:b"}),
		terminators(nil, []corev1alpha1.LogicalClusterTerminator{"c:d"}))
	stale, _ := initialization.InitializerToLabel("old:one")
	lc.Labels = map[string]string{stale: "x", "mine": "y"}
	ik, iv := initialization.InitializerToLabel("a:b")
	tk, tv := termination.TerminatorToLabel("c:d")
	require.Equal(t, map[string]string{"mine": "y", ik: iv, tk: tv, "tenancy.kcp.io/phase": "Terminating"}, label(lc).Labels)
	require.Contains(t, lc.Labels, stale, "the given object is shared and must not be changed")
}

func TestDocumented(t *testing.T) {
	initializing := advance(newCluster(initializers([]corev1alpha1.LogicalClusterInitializer{"a:b"}, nil)), "https://proxy")
	reported := documented.Reported(initializing, reportUnreadable(newCluster(), "an object"))
	for _, reason := range []string{reasonDiscoveryFailed, reasonDeletionFailed, reasonRemaining, reasonTerminators, reasonFinalizers} {
		reported = append(reported, documented.Reported(report(newCluster(), result{reason: reason}))...)
	}
	require.ElementsMatch(t, documented.Conditions(t, "LogicalCluster"), reported)
}
