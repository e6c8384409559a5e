package noisyneighbors

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const typesPath = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes"

// workspaceTypes checks that the size of workspace types is limited, and that the maximum number of
// them uses little memory in shards and the cache server, which cache all of them.
func workspaceTypes(t *testing.T, w *world) {
	const size, chain, limited, values, many = 64 << 10, 32, 64, 2048, 8
	list := func(n int, entry string) string { return strings.TrimSuffix(strings.Repeat(entry+",", n), ",") }
	body := func(name, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{%s}}`, name, spec)
	}
	allow := func(field string, n int) string {
		return `"` + field + `":{"types":[` + list(n, `{"path":"a","name":"b"}`) + `]}`
	}
	// Many strings need the most memory and time for their bytes.
	largest := allow("limitAllowedChildren", limited) + "," + allow("limitAllowedParents", limited)
	verbs := values - 4*limited - 32 // used by the metadata
	largest += `,"initializerPermissions":[{"verbs":[` + list(verbs, `"`+strings.Repeat("a", (size-len(largest)-2<<10)/verbs-len(`"",`))+`"`) + `]}]`
	with := func(name string) string { return `{"path":"root:attacker","name":"` + name + `"}` }
	names := make([]string, 0, many)
	define := func(name, spec string) {
		t.Helper()
		w.attacker.create(t, typesPath, body(name, spec))
		names = append(names, name)
	}
	before := inUse()
	for n := range many {
		define(fmt.Sprintf("%s-%d", w.id, n), largest)
	}
	cache := newTenant(t, w.Cache())
	all := "/shards/*/clusters/" + w.attacker.cluster(t) + typesPath
	cache.untilResponse(t, http.MethodGet, all, "", http.StatusOK, names[many-1], "the cache server lacks the last type")
	t.Logf("%d types of %d bytes: %d bytes of heap", many, size, inUse()-before)
	requireHeapGrowth(t, before, 40*many*size, "more than forty times the size of the types, in the shard and the cache server together")
	for _, name := range names {
		w.attacker.must(t, http.MethodDelete, typesPath+"/"+name, "")
	}
	names = names[:0]
	// Each type extends all previous ones.
	for n := range chain + 1 {
		spec := ""
		if n > 0 {
			spec = `"extend":{"with":[` + with(names[n-1]) + `]}`
		}
		define(fmt.Sprintf("%s-chain-%d", w.id, n), spec)
	}
	code, response, err := w.attacker.call(t.Context(), http.MethodPost, workspacesPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":%s}}`, w.id, with(names[chain])))
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, code, "%.300s", response)
	require.Contains(t, string(response), "extends 32 types or more")
}
