package neighbours

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// managers: what is compared with all that a write changes, and goes on when the request has
// ended, are few entries of managed fields, whether the attacker brings them along or has them
// collected.
func managers(t *testing.T, w *world) {
	const most = 128
	entries := func(n int) string {
		all := make([]string, 0, n)
		for i := range n {
			all = append(all, fmt.Sprintf(`{"manager":"m%d","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:text":{}}}}`, i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	name := "managed-" + w.mark
	maps := w.attacker.kube.CoreV1().ConfigMaps("default")
	object := func(n int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"managedFields":%s},"data":{"text":"x"}}`, name, entries(n))
	}
	const path = "/api/v1/namespaces/default/configmaps"
	w.attacker.must(t, http.MethodPost, path, object(most))
	for what, try := range map[string]func() error{
		"create": func() error {
			return w.attacker.kube.CoreV1().RESTClient().Post().AbsPath(path).Body([]byte(object(most + 1))).Do(t.Context()).Error()
		},
		"update": func() error {
			return w.attacker.kube.CoreV1().RESTClient().Put().AbsPath(path + "/" + name).Body([]byte(object(most + 1))).Do(t.Context()).Error()
		},
		"merge patch": func() error {
			_, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(object(most+1)), metav1.PatchOptions{})
			return err
		},
		"strategic merge patch": func() error {
			_, err := maps.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(object(most+1)), metav1.PatchOptions{})
			return err
		},
		"JSON patch": func() error {
			_, err := maps.Patch(t.Context(), name, types.JSONPatchType, []byte(`[{"op":"copy","from":"/data","path":"/metadata/managedFields"}]`), metav1.PatchOptions{})
			return err
		},
	} {
		err := try()
		require.True(t, apierrors.IsBadRequest(err), "%s: %v", what, err)
		require.ErrorContains(t, err, "metadata.managedFields may have 128 entries", what)
	}
	// Those that are merged into one anyway make room.
	w.attacker.must(t, http.MethodPut, path+"/"+name, strings.Replace(object(0), `"managedFields":[]`, `"managedFields":[{}]`, 1))
	apply := func(i int) error {
		patch := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"k%d":"x"}}`, name, i)
		_, err := maps.Patch(t.Context(), name, types.ApplyPatchType, []byte(patch), metav1.PatchOptions{FieldManager: fmt.Sprintf("applier-%d", i)})
		return err
	}
	var err error
	n := 0
	for err == nil && n < 2*most {
		err = apply(n)
		n++
	}
	require.True(t, apierrors.IsForbidden(err), "the %dth applier: %v", n, err)
	require.ErrorContains(t, err, "metadata.managedFields has 129 entries and may have 128")
	require.NoError(t, apply(0), "those that are there go on")
	require.NoError(t, maps.Delete(t.Context(), name, metav1.DeleteOptions{}))
}
