package limits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestMetadata checks that metadata with many errors returns few and small ones. Upstream's validation would
// return several GB.
func TestMetadata(t *testing.T) {
	t.Parallel()
	controls := true
	controlled := func(n int) metav1.ObjectMeta {
		owners := make([]metav1.OwnerReference, n)
		for i := range owners {
			owners[i] = metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: strings.Repeat("a", 1000), UID: "u", Controller: &controls}
		}
		return metav1.ObjectMeta{OwnerReferences: owners}
	}
	words := func(n int, format string) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf(format, i)] = ""
		}
		return all
	}
	for name, c := range map[string]struct {
		meta metav1.ObjectMeta
		n    int // the number of errors
	}{
		"one controller":         {controlled(1), 0},
		"two controllers":        {controlled(2), 1},
		"a thousand controllers": {controlled(1000), 1},
		"many labels":            {metav1.ObjectMeta{Labels: words(10_000, "a%d")}, 0},
		"few bad labels":         {metav1.ObjectMeta{Labels: words(100, "!%d")}, 0}, // upstream reports them
		"many bad labels":        {metav1.ObjectMeta{Labels: words(10_000, "!%d")}, request.MaxErrors},
		"many bad finalizers":    {metav1.ObjectMeta{Finalizers: make([]string, 10_000)}, request.MaxErrors},
		"many bad owners":        {metav1.ObjectMeta{OwnerReferences: make([]metav1.OwnerReference, 1000)}, request.MaxErrors},
		"few bad owners":         {metav1.ObjectMeta{OwnerReferences: make([]metav1.OwnerReference, 25)}, 0},
		"many bad annotations":   {metav1.ObjectMeta{Labels: words(60, "!%d"), Annotations: words(60, "!%d")}, request.MaxErrors},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := &corev1.ConfigMap{ObjectMeta: c.meta}
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			require.NoError(t, err)
			for _, obj := range []runtime.Object{object, &unstructured.Unstructured{Object: fields}} {
				err := NewLimits(Config{}).Admit(t.Context(), writeBy(configMaps, "", obj, nil, nil), nil)
				if c.n == 0 {
					require.NoError(t, err)
					continue
				}
				var status apierrors.APIStatus
				require.ErrorAs(t, err, &status)
				require.Len(t, status.Status().Details.Causes, c.n)
				require.Less(t, len(status.Status().Message), 1<<20)
			}
		})
	}
}
