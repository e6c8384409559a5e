package neighbours

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const typesPath = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes"

// workspaceTypes: workspace types are small, whatever is in them, and as many as there may be weigh
// little in shards and the cache server, which keep all of them.
func workspaceTypes(t *testing.T, w *world) {
	const size, chain, limited, values, many = 64 << 10, 32, 64, 2048, 8
	list := func(n int, entry string) string { return strings.TrimSuffix(strings.Repeat(entry+",", n), ",") }
	body := func(name, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{%s}}`, name, spec)
	}
	allow := func(field string, n int) string {
		return `"` + field + `":{"types":[` + list(n, `{"path":"a","name":"b"}`) + `]}`
	}
	// What takes most memory and time for its bytes: as many strings as there may be.
	largest := allow("limitAllowedChildren", limited) + "," + allow("limitAllowedParents", limited)
	verbs := values - 4*limited - 32 // the metadata has some
	largest += `,"initializerPermissions":[{"verbs":[` + list(verbs, `"`+strings.Repeat("a", (size-len(largest)-2<<10)/verbs-len(`"",`))+`"`) + `]}]`
	with := func(name string) string { return `{"path":"root:attacker","name":"` + name + `"}` }
	names := make([]string, 0, many)
	define := func(name, spec string) {
		t.Helper()
		w.attacker.create(t, typesPath, body(name, spec))
		names = append(names, name)
	}
	before := heap()
	for n := range many {
		define(fmt.Sprintf("%s-%d", w.mark, n), largest)
	}
	cache := newTenant(t, w.Cache())
	all := "/shards/*/clusters/" + w.attacker.cluster(t) + typesPath
	require.Eventually(t, func() bool {
		code, says, err := cache.call(t.Context(), http.MethodGet, all, "")
		return err == nil && code == http.StatusOK && strings.Contains(string(says), names[many-1])
	}, testTimeout, tick, "the cache server has the last of them")
	t.Logf("%d types of %d bytes: %d bytes of heap", many, size, int64(heap())-int64(before))
	requireHeapGrowth(t, before, 40*many*size, "forty times what the types weigh, in the shard and the cache server together")
	for _, name := range names {
		w.attacker.must(t, http.MethodDelete, typesPath+"/"+name, "")
	}
	names = names[:0]
	// Each type has all that it extends.
	for n := range chain + 1 {
		spec := ""
		if n > 0 {
			spec = `"extend":{"with":[` + with(names[n-1]) + `]}`
		}
		define(fmt.Sprintf("%s-chain-%d", w.mark, n), spec)
	}
	code, says, err := w.attacker.call(t.Context(), http.MethodPost, workspacesPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":%s}}`, w.mark, with(names[chain])))
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, code, "%.300s", says)
	require.Contains(t, string(says), "extends 32 types or more")
}
