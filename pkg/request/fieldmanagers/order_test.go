package fieldmanagers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKeepOrder: the former order is kept only if nothing but timestamps has changed.
func TestKeepOrder(t *testing.T) {
	t.Parallel()
	entry := func(manager, subresource, fields string, second int64) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Subresource: subresource, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}, Time: &metav1.Time{Time: time.Unix(second, 0)},
		}
	}
	before := []metav1.ManagedFieldsEntry{entry("a", "", `{"f:x":{}}`, 1), entry("a", "status", `{"f:y":{}}`, 2), entry("b", "", `{"f:x":{}}`, 3)}
	for name, c := range map[string]struct{ updated, want []metav1.ManagedFieldsEntry }{
		"another order": {
			[]metav1.ManagedFieldsEntry{before[1], before[2], entry("a", "", `{"f:x":{}}`, 4)},
			[]metav1.ManagedFieldsEntry{entry("a", "", `{"f:x":{}}`, 4), before[1], before[2]},
		},
		"other fields": {
			[]metav1.ManagedFieldsEntry{before[1], before[2], entry("a", "", `{"f:z":{}}`, 4)},
			[]metav1.ManagedFieldsEntry{before[1], before[2], entry("a", "", `{"f:z":{}}`, 4)},
		},
		"another manager": {
			[]metav1.ManagedFieldsEntry{before[1], before[2], entry("c", "", `{"f:x":{}}`, 4)},
			[]metav1.ManagedFieldsEntry{before[1], before[2], entry("c", "", `{"f:x":{}}`, 4)},
		},
		"one more": {append([]metav1.ManagedFieldsEntry{before[2]}, before...), append([]metav1.ManagedFieldsEntry{before[2]}, before...)},
		"none":     {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, updated := &corev1.ConfigMap{}, &corev1.ConfigMap{}
			old.ManagedFields, updated.ManagedFields = before, c.updated
			KeepOrder(updated, old)
			require.Equal(t, c.want, updated.ManagedFields)
		})
	}
}
