package registry_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// namesOf returns the names of the objects of a list, separated by blanks.
func namesOf(t *testing.T, list runtime.Object) string {
	t.Helper()
	var names []string
	require.NoError(t, meta.EachListItem(list, func(obj runtime.Object) error {
		names = append(names, obj.(metav1.Object).GetName())
		return nil
	}))
	return strings.Join(names, " ")
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: named(name), Data: map[string]string{"key": "value"}}
}

// mustCreate creates an object with a typed client.
func mustCreate[T any](t *testing.T, client interface {
	Create(ctx context.Context, obj T, options metav1.CreateOptions) (T, error)
}, obj T,
) T {
	t.Helper()
	created, err := client.Create(t.Context(), obj, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

func mustUpdate[T any](t *testing.T, client interface {
	Update(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error)
}, obj T,
) T {
	t.Helper()
	updated, err := client.Update(t.Context(), obj, metav1.UpdateOptions{})
	require.NoError(t, err)
	return updated
}

func mustGet[T any](t *testing.T, client interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
}, name string,
) T {
	t.Helper()
	obj, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return obj
}

func requireRefusal(t *testing.T, err error, reason metav1.StatusReason, message string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, reason, apierrors.ReasonForError(err), err.Error())
	require.EqualError(t, err, message)
}

// requireInvalid requires the error of an invalid object, or no error if want is empty.
func requireInvalid(t *testing.T, err error, prefix, want string) {
	t.Helper()
	if want == "" {
		require.NoError(t, err)
		return
	}
	requireRefusal(t, err, metav1.StatusReasonInvalid, prefix+want)
}

// requireCauses checks the causes of an invalid object, "field: reason", or no error without any.
func requireCauses(t *testing.T, err error, want ...string) {
	t.Helper()
	if len(want) == 0 {
		require.NoError(t, err)
		return
	}
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
