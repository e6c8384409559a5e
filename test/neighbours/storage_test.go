package neighbours

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

// storage is a tenant that stores as much as it can: in bytes, in objects, in what
// is no object of its own kind, and by making what it has larger.
func storage(t *testing.T, w *world) {
	limit := func(annotations string) {
		_, err := w.attacker.dyn.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, []byte(`{"metadata":{"annotations":`+annotations+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	defer limit(`{"core.kcp.io/max-total-objects":null,"core.shardplane.io/max-total-bytes":null}`)
	const most, size = 4 << 20, 200 << 10
	limit(`{"core.shardplane.io/max-total-bytes":"4Mi"}`)

	const maps = "/api/v1/namespaces/default/configmaps"
	configMap := func(name string, bytes int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"text":%q}}`, name, strings.Repeat("x", bytes))
	}
	// refusal sends requests until one is refused, and returns the answer.
	refusal := func(send func(n int) (int, []byte, error)) (int, string) {
		t.Helper()
		for n := range 200 {
			code, body, err := send(n)
			require.NoError(t, err)
			if code >= http.StatusBadRequest {
				require.Equal(t, http.StatusForbidden, code, "%s", body)
				return n, string(body)
			}
		}
		t.Fatal("nothing is refused")
		return 0, ""
	}
	post := func(path string, body func(n int) string) (int, string) {
		t.Helper()
		return refusal(func(n int) (int, []byte, error) {
			code, says, err := w.attacker.call(t.Context(), http.MethodPost, path, body(n))
			if code == http.StatusCreated {
				w.attacker.dropAfter(t, path, says)
			}
			return code, says, err
		})
	}

	made, said := post(maps, func(n int) string { return configMap(fmt.Sprintf("%s-%d", w.mark, n), size) })
	require.Contains(t, said, "at most 4194304 allowed: delete objects")
	require.Positive(t, made)
	require.LessOrEqual(t, made, most/size+3, "what was in flight when the limit was reached")
	_, said = post(maps, func(n int) string { return configMap(fmt.Sprintf("%s-small-%d", w.mark, n), 1) })
	require.Contains(t, said, "at most 4194304 allowed")
	_, said = post("/api/v1/namespaces/default/events", func(n int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"name":"%s-%d"},"involvedObject":{"namespace":"default"},"message":%q}`, w.mark, n, strings.Repeat("x", 1000))
	})
	require.Contains(t, said, "at most 4194304 allowed", "Events are bytes, too")
	one := maps + "/" + w.mark + "-0"
	_, said = refusal(func(int) (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPut, one, configMap(w.mark+"-0", size+1000))
	})
	require.Contains(t, said, "at most 4194304 allowed", "an update that grows")
	w.attacker.must(t, http.MethodPut, one, configMap(w.mark+"-0", 1))
	w.quiet.must(t, http.MethodPost, maps, configMap(w.mark, size))
	w.quiet.must(t, http.MethodDelete, maps+"/"+w.mark, "")

	for n := range made {
		w.attacker.must(t, http.MethodDelete, fmt.Sprintf("%s/%s-%d", maps, w.mark, n), "")
	}
	limit(`{"core.kcp.io/max-total-objects":"40","core.shardplane.io/max-total-bytes":null}`)
	secrets := "/api/v1/namespaces/default/secrets"
	made, said = post(secrets, func(n int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"%s-%d"}}`, w.mark, n)
	})
	require.Contains(t, said, "at most 40 allowed: delete objects")
	require.Positive(t, made)
	require.LessOrEqual(t, made, 40)
	// More than one, because controllers may create objects in the meantime.
	for n := range min(made, 5) {
		w.attacker.must(t, http.MethodDelete, fmt.Sprintf("%s/%s-%d", secrets, w.mark, n), "")
	}
	t.Cleanup(func() { w.attacker.drop(t, maps+"/"+w.mark) })
	require.Eventually(t, func() bool {
		code, _, err := w.attacker.call(t.Context(), http.MethodPost, maps, configMap(w.mark, 1))
		return err == nil && code == http.StatusCreated
	}, testTimeout, tick, "there is a place again")
}
