package namespace

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
)

func terminating(finalizers ...corev1.FinalizerName) *corev1.Namespace {
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", UID: "u", Annotations: map[string]string{logicalcluster.AnnotationKey: "abc"},
			DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)},
		},
		Spec: corev1.NamespaceSpec{Finalizers: finalizers},
	}
}

var (
	key       = client.Key{Cluster: "abc", Name: "n"}
	secrets   = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	remaining = purge.Outcome{Remaining: map[schema.GroupVersionResource]int{secrets: 2}, Finalizers: map[string]int{"x": 2}}
	errCannot = errors.New("cannot")
)

func TestReconcile(t *testing.T) {
	alive := terminating(corev1.FinalizerKubernetes)
	alive.DeletionTimestamp = nil
	const replacement = "the next one"
	for name, tc := range map[string]struct {
		ns *corev1.Namespace
		// live is the state of the server if the informer is behind.
		live    *corev1.Namespace
		round   round
		want    []string
		wantErr error
		backoff bool
		// whole is set if the logical cluster deletes the content, and since is the time since the deletion of the namespace.
		whole bool
		since time.Duration
		wait  time.Duration
	}{
		"deleted":                          {},
		"alive":                            {ns: alive},
		"replaced on the server":           {ns: terminating(corev1.FinalizerKubernetes), live: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: replacement}}},
		"finalized on the server":          {ns: terminating(corev1.FinalizerKubernetes), live: terminating()},
		"other finalizer":                  {ns: terminating("other")},
		"empty":                            {ns: terminating(corev1.FinalizerKubernetes), want: []string{"empty", "finalize []"}},
		"empty, with another finalizer":    {ns: terminating(corev1.FinalizerKubernetes, "other"), want: []string{"empty", "finalize [other]"}},
		"remaining objects":                {ns: terminating(corev1.FinalizerKubernetes), round: round{Outcome: remaining}, want: []string{"empty", "report"}, backoff: true},
		"failed deletion":                  {ns: terminating(corev1.FinalizerKubernetes), round: round{Outcome: purge.Outcome{Err: errCannot}}, want: []string{"empty", "report"}, wantErr: errCannot, backoff: true},
		"emptied with the logical cluster": {ns: terminating(corev1.FinalizerKubernetes), whole: true, since: time.Second, wait: 9 * time.Second},
		"not emptied with the logical cluster in time": {ns: terminating(corev1.FinalizerKubernetes), whole: true, since: 10 * time.Second, want: []string{"empty", "finalize []"}},
		"failed discovery": {ns: terminating(corev1.FinalizerKubernetes), round: round{discovery: errCannot}, want: []string{"empty", "report"}, wantErr: errCannot, backoff: true},
	} {
		t.Run(name, func(t *testing.T) {
			var log []string
			r := &namespaceReconciler{
				now:       func() time.Time { return time.Unix(1, 0).Add(tc.since) },
				isEmptied: func(logicalcluster.Name) bool { return tc.whole },
				get: func(client.Key) (*corev1.Namespace, error) {
					if tc.ns == nil {
						return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), "n")
					}
					return tc.ns, nil
				},
				live: func(context.Context, client.Key) (*corev1.Namespace, error) {
					if tc.live != nil {
						return tc.live, nil
					}
					return tc.ns, nil
				},
				empty: func(context.Context, client.Key) round {
					log = append(log, "empty")
					return tc.round
				},
				status: func(_ context.Context, _, updated *corev1.Namespace) (*corev1.Namespace, error) {
					log = append(log, "report")
					return updated, nil
				},
				finalize: func(_ context.Context, ns *corev1.Namespace) error {
					text := "finalize ["
					for _, f := range ns.Spec.Finalizers {
						text += string(f)
					}
					log = append(log, text+"]")
					return nil
				},
			}
			result, err := r.reconcile(t.Context(), key)
			require.ErrorIs(t, err, tc.wantErr)
			require.Equal(t, tc.want, log)
			require.Equal(t, tc.backoff, result.Backoff)
			require.Equal(t, tc.wait, result.RequeueAfter)
		})
	}
}

func TestReport(t *testing.T) {
	start, later := metav1.Unix(100, 0), metav1.Unix(200, 0)
	ns := report(terminating(), round{Outcome: remaining}, start)
	get := func(ns *corev1.Namespace, kind corev1.NamespaceConditionType) corev1.NamespaceCondition {
		for _, c := range ns.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
		require.FailNow(t, "no condition", kind)
		return corev1.NamespaceCondition{}
	}
	require.Len(t, ns.Status.Conditions, 4)
	require.Equal(t, corev1.NamespaceCondition{
		Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionTrue, LastTransitionTime: start,
		Reason: "SomeResourcesRemain", Message: "Some resources are remaining: secrets has 2 objects",
	}, get(ns, corev1.NamespaceContentRemaining))
	require.Equal(t, "Some content in the namespace has finalizers remaining: x in 2 objects", get(ns, corev1.NamespaceFinalizersRemaining).Message)
	require.Equal(t, corev1.ConditionFalse, get(ns, corev1.NamespaceDeletionContentFailure).Status)

	require.Equal(t, ns, report(ns, round{Outcome: remaining}, later), "an unchanged outcome must not change the conditions")

	failed := report(ns, round{discovery: errCannot, Outcome: purge.Outcome{Err: errCannot}}, later)
	require.Equal(t, later, get(failed, corev1.NamespaceDeletionDiscoveryFailure).LastTransitionTime)
	require.Contains(t, get(failed, corev1.NamespaceDeletionDiscoveryFailure).Message, "cannot")
	require.Equal(t, corev1.ConditionTrue, get(failed, corev1.NamespaceDeletionContentFailure).Status)
	require.Equal(t, corev1.ConditionFalse, get(failed, corev1.NamespaceContentRemaining).Status)
}
