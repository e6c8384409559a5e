package apibinding

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

func TestBinding(t *testing.T) {
	claims := []apisv1alpha2.PermissionClaim{{GroupResource: apisv1alpha2.GroupResource{Resource: "secrets"}, Verbs: []string{"get"}}}
	binding := &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Finalizers: []string{"mine", "apis.kcp.io/apibinding-finalizer"}},
		Spec:       apisv1alpha2.APIBindingSpec{Reference: apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportBindingReference{Path: "root:provider", Name: "e"}}},
	}
	exports := map[client.Key]*apisv1alpha2.APIExport{}
	paths := map[string]logicalcluster.Name{"root:provider": "provider"}
	notFound := apierrors.NewNotFound(schema.GroupResource{}, "x")
	r := &reconciler{
		binding: func(client.Key) (*apisv1alpha2.APIBinding, error) { return binding, nil },
		export: func(key client.Key) (*apisv1alpha2.APIExport, error) {
			if export := exports[key]; export != nil {
				return export, nil
			}
			return nil, notFound
		},
		resolve: func(path logicalcluster.Path) (logicalcluster.Name, bool) {
			name, ok := paths[path.String()]
			return name, ok
		},
		commit: func(_ context.Context, _, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
			binding = updated
			return updated, nil
		},
	}
	step := func(valid corev1.ConditionStatus, reason string) {
		t.Helper()
		_, err := r.reconcile(t.Context(), client.Key{Cluster: "consumer", Name: "b"})
		require.NoError(t, err)
		require.Equal(t, apisv1alpha2.APIBindingPhaseBinding, binding.Status.Phase)
		require.Equal(t, "provider", binding.Status.APIExportClusterName)
		condition := conditions.Get(binding, apisv1alpha2.APIExportValid)
		require.Equal(t, valid, condition.Status)
		require.Equal(t, reason, condition.Reason)
		require.True(t, conditions.IsFalse(binding, apisv1alpha2.InitialBindingCompleted))
		require.True(t, conditions.IsFalse(binding, "Ready"))
	}
	step(corev1.ConditionFalse, "APIExportNotFound")
	export := &apisv1alpha2.APIExport{Spec: apisv1alpha2.APIExportSpec{PermissionClaims: claims}}
	exports[client.Key{Cluster: "provider", Name: "e"}] = export
	delete(paths, "root:provider") // what the path leads to is known once and for all
	step(corev1.ConditionFalse, "MissingIdentityHash")
	export.Status.IdentityHash = "abc"
	step(corev1.ConditionTrue, "")
	require.Equal(t, claims, binding.Status.ExportPermissionClaims)
	delete(exports, client.Key{Cluster: "provider", Name: "e"})
	step(corev1.ConditionFalse, "APIExportNotFound")

	now := metav1.Now()
	binding.DeletionTimestamp = &now
	_, err := r.reconcile(t.Context(), client.Key{Cluster: "consumer", Name: "b"})
	require.NoError(t, err)
	require.Equal(t, []string{"mine"}, binding.Finalizers)
}

func TestIndex(t *testing.T) {
	require.Empty(t, IndexByExport(&apisv1alpha2.APIBinding{}))
	require.Equal(t, []string{"hash"}, IndexByExport(&apisv1alpha2.APIBinding{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"internal.apis.kcp.io/export": "hash"}}}))
}
