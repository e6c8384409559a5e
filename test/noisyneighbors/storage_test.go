package noisyneighbors

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var logicalClusters = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}

// storage stores as much as possible: in bytes, in objects, in Events, and by enlarging objects.
func storage(t *testing.T, w *world) {
	limit := func(annotations string) {
		_, err := w.attacker.dyn.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, []byte(`{"metadata":{"annotations":`+annotations+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	defer limit(`{"core.kcp.io/max-total-objects":null,"core.shardplane.io/max-total-bytes":null}`)
	const most, size = 4 << 20, 200 << 10
	limit(`{"core.shardplane.io/max-total-bytes":"4Mi"}`)

	configMap := func(name string, bytes int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"text":%q}}`, name, strings.Repeat("x", bytes))
	}
	// untilRejected sends requests until one is rejected, and returns the number of successful ones
	// and the message.
	untilRejected := func(send func(n int) (int, []byte, error)) (int, string) {
		t.Helper()
		for n := range 200 {
			code, body, err := send(n)
			require.NoError(t, err)
			if code >= http.StatusBadRequest {
				require.Equal(t, http.StatusForbidden, code, "%s", body)
				return n, string(body)
			}
		}
		t.Fatal("no request was rejected")
		return 0, ""
	}
	var created []string
	post := func(path string, body func(n int) string) (int, string) {
		t.Helper()
		return untilRejected(func(n int) (int, []byte, error) {
			code, body, err := w.attacker.call(t.Context(), http.MethodPost, path, body(n))
			if code == http.StatusCreated {
				created = append(created, w.attacker.removeAfterTest(t, path, body))
			}
			return code, body, err
		})
	}
	deleteCreated := func() {
		t.Helper()
		for _, path := range created {
			w.attacker.must(t, http.MethodDelete, path, "")
		}
		created = nil
	}

	made, message := post(configMaps, func(n int) string { return configMap(fmt.Sprintf("%s-%d", w.id, n), size) })
	require.Contains(t, message, "at most 4194304 allowed: delete objects")
	require.Positive(t, made)
	require.LessOrEqual(t, made, most/size+3, "more objects than concurrent requests explain")
	_, message = post(configMaps, func(n int) string { return configMap(fmt.Sprintf("%s-small-%d", w.id, n), 1) })
	require.Contains(t, message, "at most 4194304 allowed")
	_, message = post("/api/v1/namespaces/default/events", func(n int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"name":"%s-%d"},"involvedObject":{"namespace":"default"},"message":%q}`, w.id, n, strings.Repeat("x", 1000))
	})
	require.Contains(t, message, "at most 4194304 allowed", "Events are not counted")
	one := configMaps + "/" + w.id + "-0"
	_, message = untilRejected(func(int) (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPut, one, configMap(w.id+"-0", size+1000))
	})
	require.Contains(t, message, "at most 4194304 allowed", "a growing update is not counted")
	w.attacker.must(t, http.MethodPut, one, configMap(w.id+"-0", 1))
	w.quiet.must(t, http.MethodPost, configMaps, configMap(w.id, size))
	w.quiet.must(t, http.MethodDelete, configMaps+"/"+w.id, "")

	deleteCreated()
	limit(`{"core.kcp.io/max-total-objects":"40","core.shardplane.io/max-total-bytes":null}`)
	made, message = post("/api/v1/namespaces/default/secrets", func(n int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"%s-%d"}}`, w.id, n)
	})
	require.Contains(t, message, "at most 40 allowed: delete objects")
	require.Positive(t, made)
	require.LessOrEqual(t, made, 40)
	// All of them, because controllers may create objects in the meantime.
	deleteCreated()
	t.Cleanup(func() { w.attacker.remove(t, configMaps+"/"+w.id) })
	w.attacker.untilResponse(t, http.MethodPost, configMaps, configMap(w.id, 1), http.StatusCreated, "", "deletions did not free capacity")
}
