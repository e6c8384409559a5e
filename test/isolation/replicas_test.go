package isolation

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// relics are replicated objects that only bravo may read.
	relics     = "/apis/shared.example/v1/relics"
	relicSlice = "/services/replication/$B$/relics"
	cachedAPI  = "/apis/cache.kcp.io/v1alpha1/"

	cacheReader, shardClient = "reader of caches", "shard-1"
)

// newRelics replicates objects of bravo, and exports them with virtual storage. Only keeper has
// bound the export.
func (w *world) newRelics() {
	post := func(path, body string) { w.must(w.admin, http.MethodPost, w.bravo.path, path, body, nil) }
	const names = `"group":"shared.example","scope":"Cluster","names":{"plural":"relics","singular":"relic","kind":"Relic","listKind":"RelicList"}`
	const content = `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`
	post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"relics.shared.example"},"spec":{`+names+`,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":`+content+`}}]}}`)
	post(relics, `{"apiVersion":"shared.example/v1","kind":"Relic","metadata":{"name":"`+w.secret+`-relic"},"data":"`+w.secret+`"}`)
	post(cachedAPI+"cachedresources", `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResource","metadata":{"name":"relics"},"spec":{"group":"shared.example","version":"v1","resource":"relics"}}`)
	var cached struct {
		Status struct{ Phase, IdentityHash string }
	}
	require.Eventually(w.t, func() bool {
		got, err := call(w.t.Context(), w.admin, http.MethodGet, w.bravo.path, cachedAPI+"cachedresources/relics", "")
		return err == nil && json.Unmarshal(got.body, &cached) == nil && cached.Status.Phase == "Ready" && cached.Status.IdentityHash != ""
	}, 4*testTimeout, testTimeout/300, "the relics are not replicated: %v", &cached)
	post(cachedAPI+"cachedresourceendpointslices", `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResourceEndpointSlice","metadata":{"name":"relics"},"spec":{"cachedResource":{"name":"relics"},"export":{"name":"relics"}}}`)
	post("/apis/apis.kcp.io/v1alpha1/apiresourceschemas", `{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":"v1.relics.shared.example"},"spec":{`+names+`,"versions":[{"name":"v1","served":true,"storage":true,"schema":`+content+`}]}}`)
	post(boundAPI+"apiexports", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"relics"},"spec":{"resources":[{"group":"shared.example","name":"relics","schema":"v1.relics.shared.example","storage":{"virtual":{"reference":{"apiGroup":"cache.kcp.io","kind":"CachedResourceEndpointSlice","name":"relics"},"identityHash":%q}}}]}}`, cached.Status.IdentityHash))
	w.vars["RELICS"] = cached.Status.IdentityHash
	keeper := w.workspace("root", "keeper", "root")
	w.must(w.admin, http.MethodPost, keeper.path, boundAPI+"apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"relics"},"spec":{"reference":{"export":{"path":"`+w.bravo.path+`","name":"relics"}}}}`, nil)
	var last response
	require.Eventually(w.t, func() bool {
		var err error
		last, err = call(w.t.Context(), w.masters, http.MethodGet, "", "/services/replication/"+w.bravo.name+"/relics/clusters/*"+relics, "")
		return err == nil && last.code == http.StatusOK && strings.Contains(string(last.body), w.secret)
	}, 2*testTimeout, testTimeout/300, "the replicas are not visible to an administrator of the shard: %v", &last)
	// The last asynchronous change is the endpoint for keeper in the replicas of both slices.
	for resource, service := range map[string]string{"cache.kcp.io/v1alpha1/cachedresourceendpointslices": "replication", "apis.kcp.io/v1alpha1/apiexportendpointslices": "apiexport"} {
		require.Eventually(w.t, func() bool {
			var err error
			last, err = call(w.t.Context(), w.Cache(), http.MethodGet, "", "/services/cache/shards/root/clusters/"+w.bravo.name+"/apis/"+resource+"/relics", "")
			return err == nil && strings.Contains(string(last.body), "/services/"+service+"/"+w.bravo.name+"/relics")
		}, 2*testTimeout, testTimeout/300, "the slice has no endpoint: %v", &last)
	}
}

// testReplicas checks that attackers can neither read nor write replicas at any server. TestServer
// of pkg/cacheserver tests which client certificates are accepted.
func (w *world) testReplicas(t *testing.T) {
	w.useHandlers()
	const cache = "/services/cache/shards/"
	paths := []string{
		cache + "*/clusters/*" + relics, cache + "root/clusters/$B$" + relics, cache + "root/clusters/$B$" + relics + "/x", cache + "root/digests", cache + "root/digests/relics.shared.example/0",
		cache + "*/clusters/*/apis/core.kcp.io/v1alpha1/shards", cache + "root/clusters/system:checkpoints/apis/cache.shardplane.io/v1alpha1/replicationcheckpoints/shard",
		relicSlice + "/clusters/*" + relics, relicSlice + "/clusters/$B$" + relics, relicSlice + "/clusters/$B$" + relics + "/x", relicSlice + "/clusters/$A$" + relics, relicSlice + "/clusters/*/apis", relicSlice + "/clusters/*/openapi/v3",
		relicSlice, "/services/replication/$A$/relics/clusters/*" + relics, "/services/replication/$BPATH$/relics/clusters/*" + relics, "/clusters/$A$" + relics, "/clusters/$A$" + relics + ":$RELICS$",
	}
	refused := []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType}
	var inputs []input
	for attacker, p := range w.attackers {
		for target := range w.targets {
			if !p.attacks(w.targets[target].name) {
				continue
			}
			for n, path := range paths {
				for _, verb := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
					inputs = append(inputs, input{attacker: attacker, target: target, wire: (n+attacker)%17 == 0, raw: verb + " " + path + " HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + `{"metadata":{"name":"x"}}`})
				}
			}
		}
	}
	w.send(t, inputs)
	for _, in := range inputs {
		if in.wire {
			got := w.perform(t.Context(), in, false)
			require.NoError(t, got.err)
			require.Contains(t, refused, got.code, "%s at %s: %s: %s", w.attackers[in.attacker].name, w.targets[in.target].name, in.raw, got)
		}
	}
	got := w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"relics"},"spec":{"reference":{"export":{"path":"$BPATH$","name":"relics"}}}}`)
	require.Equal(t, http.StatusForbidden, got.code, "alpha bound an export with virtual storage of bravo: %s", got)
}
