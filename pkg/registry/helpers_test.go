package registry_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: named(name), Data: map[string]string{"key": "value"}}
}

func createConfigMap(t *testing.T, client kubernetes.Interface, namespace string, cm *corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	created, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// refusal is an expected error.
type refusal struct {
	reason  metav1.StatusReason
	message string
}

func requireRefusal(t *testing.T, err error, want refusal) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want.reason, apierrors.ReasonForError(err), err.Error())
	require.EqualError(t, err, want.message)
}

// requireCauses checks the causes of an invalid object: "field: reason".
func requireCauses(t *testing.T, err error, want ...string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, apierrors.IsInvalid(err), err.Error())
	var status apierrors.APIStatus
	require.ErrorAs(t, err, &status)
	var got []string
	for _, cause := range status.Status().Details.Causes {
		got = append(got, cause.Field+": "+string(cause.Type))
	}
	require.ElementsMatch(t, want, got, err.Error())
}

// warnings collects the warnings of the server.
type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.texts = append(w.texts, text)
}

// equalStrings compares in order; nil equals empty.
func equalStrings(a, b []string) bool { return slices.Equal(a, b) }
