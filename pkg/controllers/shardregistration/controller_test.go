package shardregistration

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var settings = Config{ShardName: "a", BaseURL: "https://a:6444", ExternalURL: "https://proxy:6443"}

func TestDesired(t *testing.T) {
	got := desired(&corev1alpha1.Shard{}, settings)
	require.Equal(t, &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"name": "a"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: "https://a:6444", ExternalURL: "https://proxy:6443", VirtualWorkspaceURL: "https://a:6444"},
	}, got)

	edited := got.DeepCopy()
	edited.Labels = map[string]string{"name": "b", "region": "eu"}
	edited.Annotations = map[string]string{"experimental.core.kcp.io/unschedulable": "true"}
	edited.Spec = corev1alpha1.ShardSpec{BaseURL: "https://wrong"}
	corrected := desired(edited, settings)
	require.Equal(t, got.Spec, corrected.Spec)
	require.Equal(t, map[string]string{"name": "a", "region": "eu"}, corrected.Labels)
	require.Equal(t, edited.Annotations, corrected.Annotations)

	alone := desired(&corev1alpha1.Shard{}, Config{ShardName: "a", BaseURL: "https://a:6444"})
	require.Equal(t, corev1alpha1.ShardSpec{BaseURL: "https://a:6444", ExternalURL: "https://a:6444", VirtualWorkspaceURL: "https://a:6444"}, alone.Spec)
}

func TestReconcile(t *testing.T) {
	published := settings
	published.VirtualWorkspaceURL = "https://proxy:6443/shards/a"
	require.Equal(t, "https://proxy:6443/shards/a", desired(&corev1alpha1.Shard{}, published).Spec.VirtualWorkspaceURL)

	deleting := desired(&corev1alpha1.Shard{}, settings)
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	down := errors.New("connection refused")
	for name, tc := range map[string]struct {
		existing      *corev1alpha1.Shard
		removed       bool
		fail, wantErr error
		want          string
	}{
		"new":                      {want: "create"},
		"root unreachable, create": {fail: down, want: "create", wantErr: down},
		"stale informer":           {fail: apierrors.NewAlreadyExists(corev1alpha1.Resource("shards"), "a"), want: "create"},
		"existing":                 {existing: desired(&corev1alpha1.Shard{}, settings), want: "commit"},
		"root unreachable, update": {existing: desired(&corev1alpha1.Shard{}, settings), fail: down, want: "commit", wantErr: down},
		"being deleted":            {existing: deleting},
		"removed":                  {removed: true},
		"removed and recreated":    {removed: true, existing: desired(&corev1alpha1.Shard{}, settings), want: "commit"},
	} {
		t.Run(name, func(t *testing.T) {
			did := ""
			r := &registrationReconciler{
				config: settings,
				get:    func(string) (*corev1alpha1.Shard, bool) { return tc.existing, tc.existing != nil },
				create: func(context.Context, *corev1alpha1.Shard) error {
					did = "create"
					return tc.fail
				},
				commit: func(context.Context, *corev1alpha1.Shard, *corev1alpha1.Shard) error {
					did = "commit"
					return tc.fail
				},
			}
			r.removed.Store(tc.removed)
			_, err := r.reconcile(t.Context(), "a")
			require.ErrorIs(t, err, tc.wantErr)
			require.Equal(t, tc.want, did)
		})
	}
}
