package isolation

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	gems     = "/apis/bound.example/v1/namespaces/vault/gems"
	boundAPI = "/apis/apis.kcp.io/v1alpha2/"
)

// testBound checks that objects of bound APIs cannot be accessed through the shared resource, the
// identity or the copies of schemas.
func (w *world) testBound(t *testing.T) {
	const (
		all     = "/apis/bound.example/v1/gems"
		copies  = "/apis/internal.shardplane.io/v1alpha1/boundschemas"
		forged  = `{"status":{"boundResources":[{"group":"bound.example","resource":"gems","schema":{"name":"v1.gems.bound.example","UID":"u","identityHash":"$GEMS$"},"storageVersions":["v1"]}]}}`
		metaGVK = "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	)
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodGet, "/clusters/$A$"+gems+"/treasure", "").code, "alpha does not have the object")
	for _, tc := range []struct {
		method, path, body string
		code               int
		line               string
	}{
		{http.MethodGet, "/clusters/$A$" + all + ":$GEMS$", "", http.StatusNotFound, "X: y"},
		{http.MethodGet, "/clusters/$A$" + gems + ":$GEMS$/treasure", "", http.StatusNotFound, "X: y"},
		{http.MethodGet, "/clusters/$A$" + gems + ":/treasure", "", http.StatusNotFound, "X: y"},
		{http.MethodGet, "/clusters/$A$" + all + ":$GEMS$?watch=true", "", http.StatusNotFound, "X: y"},
		{http.MethodGet, "/clusters/$A$" + all + "%3a$GEMS$", "", http.StatusNotFound, metaGVK},
		{http.MethodDelete, "/clusters/$A$" + gems + ":$GEMS$", "", http.StatusNotFound, "X: y"},
		{http.MethodGet, "/clusters/*" + all + ":$GEMS$", "", http.StatusForbidden, "X: y"},
		{http.MethodGet, "/clusters/*" + all + ":$GEMS$?watch=true&fieldSelector=metadata.name%3Dtreasure", "", http.StatusForbidden, "X: y"},
		{http.MethodGet, "/clusters/*" + all, "", http.StatusForbidden, metaGVK},
		{http.MethodGet, "/clusters/$A$" + copies, "", http.StatusNotFound, "X: y"},
		{http.MethodGet, "/clusters/system:admin" + copies, "", http.StatusForbidden, "X: y"},
		{http.MethodPatch, "/clusters/$A$" + boundAPI + "apibindings/gems/status", forged, http.StatusForbidden, "X: y"},
		{http.MethodPatch, "/clusters/$A$" + boundAPI + "apibindings:/gems/status", forged, http.StatusNotFound, "X: y"},
		{http.MethodPatch, "/clusters/$A$/apis/apis.kcp.io/v1alpha1/apibindings/gems/status", forged, http.StatusForbidden, "X: y"},
		{http.MethodPatch, "/clusters/$A$" + boundAPI + "apiexports:/gems/status", `{"status":{"identityHash":"$GEMS$"}}`, http.StatusNotFound, "X: y"},
		{http.MethodPatch, "/clusters/$A$" + boundAPI + "apibindings/gems", `{"metadata":{"labels":{"internal.apis.kcp.io/export":"x"}}}`, http.StatusForbidden, "X: y"},
		{http.MethodPatch, "/clusters/$A$" + boundAPI + "apibindings/gems", `{"spec":{"reference":{"export":{"path":"$BPATH$","name":"gems"}}}}`, http.StatusUnprocessableEntity, "X: y"},
		{http.MethodPost, "/clusters/$A$" + boundAPI + "apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"theirs"},"spec":{"reference":{"export":{"path":"$BPATH$","name":"gems"}}}}`, http.StatusForbidden, "X: y"},
		{http.MethodPatch, "/clusters/$A$" + boundAPI + "apibindings/theirs?fieldManager=x", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"theirs"},"spec":{"reference":{"export":{"path":"$BPATH$","name":"gems"}}}}`, http.StatusForbidden, "Content-Type: application/apply-patch+yaml"},
		{http.MethodPatch, "/clusters/$A$" + gems + "/treasure", `{"metadata":{"annotations":{"internal.apis.kcp.io/identity":"$GEMS$","kcp.io/cluster":"$B$"}}}`, http.StatusForbidden, "X: y"},
	} {
		got := w.mallory(t, tc.method, tc.path, tc.body, tc.line)
		require.Equal(t, tc.code, got.code, "%s %s: %s", tc.method, tc.path, got)
	}
	require.NotContains(t, string(w.mallory(t, http.MethodGet, "/clusters/$A$"+gems+"/treasure", "").body), w.vars["GEMS"])
	w.testDefinedCopies(t, copies)
	w.testSharedIdentity(t)
}

// testDefinedCopies checks that a definition cannot use the name of the copies of schemas.
func (w *world) testDefinedCopies(t *testing.T, copies string) {
	const definitions = "/clusters/$A$/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	got := w.mallory(t, http.MethodPost, definitions, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"boundschemas.internal.shardplane.io"},"spec":{"group":"internal.shardplane.io","scope":"Cluster","names":{"plural":"boundschemas","singular":"boundschema","kind":"BoundSchema","listKind":"BoundSchemaList"},"versions":[{"name":"v1alpha1","the bound API is not served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	require.Equal(t, http.StatusForbidden, got.code, "%s", got)
	require.Contains(t, string(got.body), "spec.group internal.shardplane.io is reserved for system APIs")
	require.Equal(t, http.StatusNotFound, w.mallory(t, http.MethodGet, "/clusters/$A$"+copies, "").code)
}

// testSharedIdentity checks that an export with the identity of another one gives no access.
// Consumers must bind it explicitly, and have separate objects.
func (w *world) testSharedIdentity(t *testing.T) {
	var secret struct{ Data map[string]string }
	w.must(w.admin, http.MethodGet, w.bravo.path, "/api/v1/namespaces/kcp-system/secrets/gems", "", &secret)
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$/api/v1/namespaces/vault/secrets", `{"metadata":{"name":"copied"},"data":{"key":"`+secret.Data["key"]+`"}}`).code)
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"copied"},"spec":{"identity":{"secretRef":{"namespace":"vault","name":"copied"}},"resources":[{"group":"bound.example","name":"gems","schema":"v1.gems.bound.example","storage":{"crd":{}}}]}}`).code)
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apibindings/gems", "").code)
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"copied"},"spec":{"reference":{"export":{"name":"copied"}}}}`).code)
	var list struct{ Items []any }
	w.untilResponse(t, atProxy, http.MethodGet, "/clusters/$A$"+boundAPI+"apibindings/copied", "", http.StatusOK, `"phase":"Bound"`, "the copied export is not bound")
	got := w.untilResponse(t, atProxy, http.MethodGet, "/clusters/$A$"+gems, "", http.StatusOK, "", "the bound API is not served")
	require.True(t, decode(got, &list))
	require.Empty(t, list.Items)
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+gems, `{"apiVersion":"bound.example/v1","kind":"Gem","metadata":{"name":"mine"}}`).code)
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+gems, "").code, "objects of alpha")
	w.must(w.admin, http.MethodGet, w.bravo.path, gems+"/treasure", "", nil)
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apibindings/copied", "").code)
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apibindings", gemsBinding).code)
}
