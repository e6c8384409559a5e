package neighbours

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// replicas is a tenant that makes as much as it can of what each shard has replicated to the cache server.
func replicas(t *testing.T, w *world) {
	kinds := map[string]func(name string) string{
		apisV2 + "apiexports": func(name string) string {
			return fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":%q}}`, name)
		},
		"/apis/rbac.authorization.k8s.io/v1/clusterroles": func(name string) string {
			return fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":%q,"labels":{"internal.kcp.io/replicate":"x"}},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`, name)
		},
	}
	before := w.counted(t, "shardplane_replicated_refused_total")
	for path, body := range kinds {
		made, refused := []string{}, ""
		for n := 0; refused == ""; n++ {
			require.LessOrEqual(t, n, maxReplicated+5, "%s: nothing is refused", path)
			name := fmt.Sprintf("%s-%d", w.mark, n)
			code, says, err := w.attacker.call(t.Context(), http.MethodPost, path, body(name))
			require.NoError(t, err)
			if code == http.StatusCreated {
				made = append(made, name)
				continue
			}
			require.Equal(t, http.StatusForbidden, code, "%.300s", says)
			refused = string(says)
		}
		require.Contains(t, refused, fmt.Sprintf("at most %d allowed, because they are replicated to other shards: delete objects, or have an administrator raise --max-replicated-objects", maxReplicated))
		w.quiet.create(t, path, body("quiet-"+w.mark))
		for _, name := range made {
			w.attacker.must(t, http.MethodDelete, path+"/"+name, "")
		}
	}
	require.True(t, seen(func() bool {
		return w.counted(t, "shardplane_replicated_refused_total") == before+float64(len(kinds))
	}), "each refusal is counted")
	cache := newTenant(t, w.Cache())
	quiet := w.quiet.cluster(t)
	for path := range kinds {
		require.Eventually(t, func() bool {
			code, says, err := cache.call(t.Context(), http.MethodGet, "/shards/*/clusters/"+quiet+path, "")
			return err == nil && code == http.StatusOK && strings.Contains(string(says), "quiet-"+w.mark)
		}, testTimeout, tick, "the replica of the quiet tenant's is there: %s", path)
	}
}

// cached is a tenant that has as many objects replicated as it can, and more.
func cached(t *testing.T, w *world) {
	const resources = "/apis/cache.kcp.io/v1alpha1/cachedresources"
	says := func(u *tenant) (string, float64) {
		var now struct {
			Status struct {
				ResourceCounts struct{ Cache float64 }
				Conditions     []struct{ Type, Status, Reason string }
			}
		}
		code, content, err := u.call(t.Context(), http.MethodGet, resources+"/"+w.mark, "")
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
	group := w.mark + ".cached.example"
	for _, u := range []*tenant{w.attacker, w.quiet} {
		u.define(t, things(group, "v1"))
		u.create(t, resources, fmt.Sprintf(`{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResource","metadata":{"name":%q},"spec":{"group":%q,"version":"v1","resource":"things"}}`, w.mark, group))
	}
	const path = "/things"
	for n := range maxCached + 5 {
		w.attacker.must(t, http.MethodPost, "/apis/"+group+"/v1"+path, thing(group, "v1", fmt.Sprintf("t-%d", n), ""))
	}
	require.Eventually(t, func() bool {
		condition, there := says(w.attacker)
		return condition == "False TooManyObjects" && there == maxCached
	}, testTimeout, tick, "the attacker has as many as it may have, and is told so")
	for n := range 3 {
		w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1"+path, thing(group, "v1", fmt.Sprintf("t-%d", n), ""))
	}
	require.Eventually(t, func() bool {
		_, there := says(w.quiet)
		return there == 3
	}, testTimeout, tick, "the quiet tenant's are replicated")
}
