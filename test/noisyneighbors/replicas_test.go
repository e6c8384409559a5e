package noisyneighbors

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// replicas creates the maximum number of objects that are replicated to the cache server.
func replicas(t *testing.T, w *world) {
	kinds := map[string]func(name string) string{
		apisV2 + "apiexports": func(name string) string {
			return fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":%q}}`, name)
		},
		"/apis/rbac.authorization.k8s.io/v1/clusterroles": func(name string) string {
			return fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":%q,"labels":{"internal.kcp.io/replicate":"x"}},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`, name)
		},
	}
	before := w.metric(t, "shardplane_replicated_refused_total")
	for path, body := range kinds {
		made, rejection := []string{}, ""
		for n := 0; rejection == ""; n++ {
			require.LessOrEqual(t, n, maxReplicated+5, "%s: no request is rejected", path)
			name := fmt.Sprintf("%s-%d", w.id, n)
			code, content, err := w.attacker.call(t.Context(), http.MethodPost, path, body(name))
			require.NoError(t, err)
			if code == http.StatusCreated {
				made = append(made, name)
				continue
			}
			require.Equal(t, http.StatusForbidden, code, "%.300s", content)
			rejection = string(content)
		}
		require.Contains(t, rejection, fmt.Sprintf("at most %d allowed, because they are replicated to other shards: delete objects, or have an administrator raise --max-replicated-objects", maxReplicated))
		w.quiet.create(t, path, body("quiet-"+w.id))
		for _, name := range made {
			w.attacker.must(t, http.MethodDelete, path+"/"+name, "")
		}
	}
	require.True(t, countersMatch(w.metric(t, "shardplane_replicated_refused_total") == before+float64(len(kinds))), "rejections are not counted")
	cache := newTenant(t, w.Cache())
	quiet := w.quiet.cluster(t)
	for path := range kinds {
		cache.untilResponse(t, http.MethodGet, "/shards/*/clusters/"+quiet+path, "", http.StatusOK, "quiet-"+w.id, "the quiet tenant's object is not replicated: %s", path)
	}
}

// cached replicates more objects of a cached resource than allowed.
func cached(t *testing.T, w *world) {
	const resources = "/apis/cache.kcp.io/v1alpha1/cachedresources"
	status := func(u *tenant) (string, float64) {
		var now struct {
			Status struct {
				ResourceCounts struct{ Cache float64 }
				Conditions     []struct{ Type, Status, Reason string }
			}
		}
		code, content, err := u.call(t.Context(), http.MethodGet, resources+"/"+w.id, "")
		if err != nil || code != http.StatusOK || json.Unmarshal(content, &now) != nil {
			return "", 0
		}
		for _, c := range now.Status.Conditions {
			if c.Type == "ReplicationStarted" {
				return c.Status + " " + c.Reason, now.Status.ResourceCounts.Cache
			}
		}
		return "", 0
	}
	group := w.id + ".cached.example"
	for _, u := range []*tenant{w.attacker, w.quiet} {
		u.define(t, things(group, "v1"))
		u.create(t, resources, fmt.Sprintf(`{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResource","metadata":{"name":%q},"spec":{"group":%q,"version":"v1","resource":"things"}}`, w.id, group))
	}
	const path = "/things"
	for n := range maxCached + 5 {
		w.attacker.must(t, http.MethodPost, "/apis/"+group+"/v1"+path, thing(group, "v1", fmt.Sprintf("t-%d", n), ""))
	}
	require.Eventually(t, func() bool {
		condition, cached := status(w.attacker)
		return condition == "False TooManyObjects" && cached == maxCached
	}, testTimeout, tick, "the attacker's resource does not report TooManyObjects at the limit")
	for n := range 3 {
		w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1"+path, thing(group, "v1", fmt.Sprintf("t-%d", n), ""))
	}
	require.Eventually(t, func() bool {
		_, cached := status(w.quiet)
		return cached == 3
	}, testTimeout, tick, "the quiet tenant's objects are not replicated")
}
