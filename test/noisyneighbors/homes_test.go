package noisyneighbors

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// homes creates as many workspaces and objects as possible in and below the home workspace of a
// user without other rights.
func homes(t *testing.T, w *world) {
	as := func(cluster string) *tenant {
		config := rest.AnonymousClientConfig(harness.In(w.Proxy(), cluster))
		config.BearerToken = "user-5-token"
		return newTenant(t, config)
	}
	const path = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
	var home struct{ Spec struct{ Cluster string } }
	require.Eventually(t, func() bool {
		code, body, err := as("root").call(t.Context(), http.MethodGet, path+"/~", "")
		return err == nil && code == http.StatusOK && json.Unmarshal(body, &home) == nil
	}, testTimeout, tick)
	attacker := as(home.Spec.Cluster)
	attacker.waitUntilAuthorized(t)

	// fill sends requests until one is rejected, and returns the number of successful ones.
	fill := func(path, object string) (made int, message string) {
		for n := range 2 * maxHomeObjects {
			code, body, err := attacker.call(t.Context(), http.MethodPost, path, fmt.Sprintf(object, fmt.Sprintf("%s-%d", w.id, n)))
			require.NoError(t, err)
			if code == http.StatusForbidden {
				return n, string(body)
			}
			require.Equal(t, http.StatusCreated, code, "%s", body)
			attacker.removeAfterTest(t, path, body)
		}
		return 2 * maxHomeObjects, "no request was rejected"
	}
	// Counts are up to a second old, so that the limit may be exceeded by the objects of one
	// second.
	const late = 100
	made, message := 0, ""
	require.Eventually(t, func() bool {
		code, body, err := attacker.call(t.Context(), http.MethodPost, path, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"w-%s-%d"}}`, w.id, made))
		if err == nil && code == http.StatusCreated {
			made++
			attacker.removeAfterTest(t, path, body)
		}
		message = string(body)
		return err == nil && code == http.StatusForbidden
	}, testTimeout, 20*tick)
	require.Contains(t, message, "workspaces on this shard, at most 3 allowed")
	require.Less(t, made, late)
	made, message = fill(configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`)
	require.Contains(t, message, "objects on this shard, at most")
	require.Less(t, made, maxHomeObjects+late)
	w.quiet.must(t, http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, w.id))
	w.quiet.must(t, http.MethodDelete, configMaps+"/"+w.id, "")
}
