package noisyneighbors

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const boundSchemas = "/clusters/system:admin/apis/internal.shardplane.io/v1alpha1/boundschemas"

// claimable contains the resources that can be claimed without an identity.
var claimable = map[string][]string{
	"":                             {"configmaps", "secrets", "namespaces", "serviceaccounts", "events", "resourcequotas"},
	"rbac.authorization.k8s.io":    {"roles", "rolebindings", "clusterroles", "clusterrolebindings"},
	"admissionregistration.k8s.io": {"validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies"},
	"apiextensions.k8s.io":         {"customresourcedefinitions"},
	"core.kcp.io":                  {"logicalclusters"},
	"coordination.k8s.io":          {"leases"},
	"apis.kcp.io":                  {"apiexports", "apiresourceschemas", "apibindings"},
}

// cluster returns the name of the tenant's logical cluster.
func (u *tenant) cluster(t *testing.T) string {
	t.Helper()
	var lc struct {
		Metadata struct{ Annotations map[string]string }
	}
	require.NoError(t, json.Unmarshal(u.must(t, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", ""), &lc))
	require.NotEmpty(t, lc.Metadata.Annotations["kcp.io/cluster"])
	return lc.Metadata.Annotations["kcp.io/cluster"]
}

// schema creates a schema of things of a group, with properties and versions, until the test ends.
func (u *tenant) schema(t *testing.T, prefix, group, properties string, versions int) (code int, body []byte) {
	t.Helper()
	all := make([]string, 0, versions)
	for n := range versions {
		all = append(all, fmt.Sprintf(`{"name":"v%d","served":true,"storage":%t,"schema":{"type":"object","properties":{"text":{"type":"string"}%s}}}`, n+1, n == 0, properties))
	}
	t.Cleanup(func() { u.remove(t, apisV1+"apiresourceschemas/"+prefix+".things."+group) })
	code, body, err := u.call(t.Context(), http.MethodPost, apisV1+"apiresourceschemas", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":"%[1]s.things.%[2]s"},"spec":{"group":%[2]q,"scope":"Cluster","conversion":{"strategy":"None"},"names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},"versions":[%[3]s]}}`,
		prefix, group, strings.Join(all, ",")))
	require.NoError(t, err)
	return code, body
}

// export creates an export until the test ends, or updates it. Its resources and claims are JSON
// list items.
func (u *tenant) export(t *testing.T, name, offers, claims string) {
	t.Helper()
	path, object := apisV2+"apiexports", map[string]any{"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": map[string]any{"name": name}}
	method := http.MethodPost
	require.Eventually(t, func() bool {
		if code, old, err := u.call(t.Context(), http.MethodGet, path+"/"+name, ""); err == nil && code == http.StatusOK {
			require.NoError(t, json.Unmarshal(old, &object))
			method = http.MethodPut
		}
		spec, _ := object["spec"].(map[string]any)
		if spec == nil {
			spec = map[string]any{}
		}
		spec["resources"], spec["permissionClaims"] = json.RawMessage("["+offers+"]"), json.RawMessage("["+claims+"]")
		object["spec"] = spec
		body, err := json.Marshal(object)
		require.NoError(t, err)
		to := path
		if method == http.MethodPut {
			to += "/" + name
		}
		code, body, err := u.call(t.Context(), method, to, string(body))
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusOK, http.StatusCreated, http.StatusConflict}, code, "%.300s", body)
		return code != http.StatusConflict
	}, testTimeout, tick, "the export was not written")
	if method == http.MethodPost {
		t.Cleanup(func() { u.remove(t, path+"/"+name) })
	}
}

func offer(prefix, group string) string {
	return fmt.Sprintf(`{"group":%[2]q,"name":"things","schema":"%[1]s.things.%[2]s","storage":{"crd":{}}}`, prefix, group)
}

// bindTo creates a binding until the test ends. A conflict is possible because the client repeats
// requests of broken connections.
func (u *tenant) bindTo(t *testing.T, name, path, export string) {
	t.Helper()
	t.Cleanup(func() { u.remove(t, apisV2+"apibindings/"+name) })
	code, content, err := u.call(t.Context(), http.MethodPost, apisV2+"apibindings", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":%q,"labels":{"test":"bindings"}},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, name, path, export))
	require.NoError(t, err)
	require.Contains(t, []int{http.StatusCreated, http.StatusConflict}, code, "%.300s", content)
}

type binding struct {
	Metadata struct{ ResourceVersion string }
	Status   struct {
		BoundResources          []struct{ Schema struct{ Name string } }
		AppliedPermissionClaims []any
		Conditions              []struct{ Type, Status, Reason string }
	}
}

func (b *binding) condition(kind string) string {
	for _, c := range b.Status.Conditions {
		if c.Type == kind {
			return strings.TrimSpace(c.Status + " " + c.Reason)
		}
	}
	return ""
}

func (u *tenant) untilBinding(t *testing.T, name, what string, done func(b *binding) bool) {
	t.Helper()
	var last []byte
	if !assert.Eventually(t, func() bool {
		b := &binding{}
		code, text, err := u.call(t.Context(), http.MethodGet, apisV2+"apibindings/"+name, "")
		last = text
		return err == nil && code == http.StatusOK && json.Unmarshal(text, b) == nil && done(b)
	}, testTimeout, tick, "binding %s is not %s", name, what) {
		require.FailNow(t, "last state", "%s", last)
	}
}

func ready(b *binding) bool { return b.condition("Ready") == "True" }

func (u *tenant) unbind(t *testing.T, name string) {
	t.Helper()
	u.remove(t, apisV2+"apibindings/"+name)
}

// copies returns the number of bound schemas of a group on the shard.
func (w *world) copies(t *testing.T, group string) int {
	t.Helper()
	return strings.Count(string(w.operator.must(t, http.MethodGet, boundSchemas, "")), `.things.`+group+`"`)
}

// exports checks an attacker that exports schemas of the maximum size, claims everything in many
// exports, and continuously changes one that the quiet tenant has bound. This must not disclose,
// enlarge or interrupt anything of the quiet tenant.
func exports(t *testing.T, w *world) {
	documents := func() []byte { return w.quiet.must(t, http.MethodGet, "/openapi/v3", "") }
	group := w.id + ".exported.example"
	code, body := w.attacker.schema(t, "a", group, "", 1)
	require.Equal(t, http.StatusCreated, code, "%s", body)
	code, body = w.attacker.schema(t, "b", group, `,"more":{"type":"string"}`, 1)
	require.Equal(t, http.StatusCreated, code, "%s", body)
	all := make([]string, 0, 20)
	for of, resources := range claimable {
		for _, resource := range resources {
			all = append(all, fmt.Sprintf(`{"group":%q,"resource":%q,"verbs":["*"]}`, of, resource))
		}
	}
	w.attacker.export(t, w.id, offer("a", group), strings.Join(all, ","))
	w.quiet.bindTo(t, w.id, "root:attacker", w.id)
	w.quiet.untilBinding(t, w.id, "Ready", ready)

	// Claims on everything, without any accepted ones.
	for n := range 10 {
		w.attacker.export(t, fmt.Sprintf("%s-%d", w.id, n), "", strings.Join(all, ","))
	}
	mine := w.quiet.must(t, http.MethodPost, configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"unclaimed-`+w.id+`"}}`)
	require.NotContains(t, string(mine), "claimed.internal.apis.kcp.io")
	virtualWorkspace := "/services/apiexport/" + w.attacker.cluster(t) + "/" + w.id + "/clusters/*"
	for of, resources := range claimable {
		prefix := map[bool]string{true: "/api/v1/", false: "/apis/" + of + "/v1/"}[of == ""]
		switch of {
		case "core.kcp.io":
			prefix = "/apis/core.kcp.io/v1alpha1/"
		case "apis.kcp.io":
			continue // a provider may read the bindings of its export
		}
		for _, resource := range resources {
			var list struct{ Items []any }
			require.NoError(t, json.Unmarshal(w.operator.must(t, http.MethodGet, virtualWorkspace+prefix+resource, ""), &list))
			require.Empty(t, list.Items, resource)
		}
	}
	t.Run("schemas", func(t *testing.T) { largeSchemas(t, w, documents) })

	// Alternating schemas.
	events := w.quiet.stream(t, configMaps+"?watch=true&fieldSelector=metadata.name%3Dunclaimed-"+w.id)
	const swaps = 20
	for n := range swaps {
		w.attacker.export(t, w.id, offer([]string{"b", "a"}[n%2], group), strings.Join(all, ","))
	}
	w.quiet.untilBinding(t, w.id, "bound to the latest schema", func(b *binding) bool {
		return len(b.Status.BoundResources) == 1 && strings.HasPrefix(b.Status.BoundResources[0].Schema.Name, "a.") && ready(b)
	})
	require.LessOrEqual(t, w.copies(t, group), 2, "more than one copy of each schema")
	w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "mine", ""))
	w.quiet.must(t, http.MethodDelete, configMaps+"/unclaimed-"+w.id, "")
	for kind := ""; kind != "DELETED"; {
		require.True(t, events.Scan(), "the quiet tenant's watch has ended")
		var e struct{ Type string }
		require.NoError(t, json.Unmarshal(events.Bytes(), &e))
		kind = e.Type
	}
}

// stream opens a watch until the test ends.
func (u *tenant) stream(t *testing.T, path string) *bufio.Scanner {
	t.Helper()
	response := u.open(t, path)
	require.Equal(t, http.StatusOK, response.StatusCode)
	events := bufio.NewScanner(response.Body)
	events.Buffer(nil, 1<<20)
	return events
}

// largeSchemas checks that schemas near and above the limits are accepted or rejected without
// enlarging documents of others.
func largeSchemas(t *testing.T, w *world, documents func() []byte) {
	before := documents()
	properties := func(n int) string {
		var out strings.Builder
		for i := range n {
			fmt.Fprintf(&out, `,"p%d":{"type":"string","description":"%s"}`, i, strings.Repeat("x", 100))
		}
		return out.String()
	}
	deep := func(n int) string {
		return `,"deep":` + strings.Repeat(`{"type":"object","properties":{"d":`, n) + `{"type":"string"}` + strings.Repeat(`}}`, n)
	}
	for name, tc := range map[string]struct {
		properties string
		versions   int
		codes      []int
	}{
		"wide":     {properties(8000), 1, []int{http.StatusCreated}},
		"too wide": {properties(30000), 1, []int{http.StatusRequestEntityTooLarge}},
		"versions": {"", 100, []int{http.StatusCreated}},
		"deep":     {deep(100), 1, []int{http.StatusCreated, http.StatusUnprocessableEntity}},
		"too deep": {deep(5000), 1, []int{http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge}},
	} {
		group := strings.ReplaceAll(name, " ", "-") + "." + w.id + ".example"
		code, body := w.attacker.schema(t, "v1", group, tc.properties, tc.versions)
		require.Contains(t, tc.codes, code, "%s: %.300s", name, body)
		if code != http.StatusCreated {
			continue
		}
		w.attacker.export(t, group, offer("v1", group), "")
		w.attacker.bindTo(t, group, "root:attacker", group)
		w.attacker.untilBinding(t, group, "Ready", ready)
		require.LessOrEqual(t, w.copies(t, group), 1, "%s", name)
		w.attacker.unbind(t, group)
	}
	require.Len(t, documents(), len(before), "the documents of the quiet tenant have grown")
}

// consumers checks an attacker that binds and unbinds the quiet tenant's API, accepts and rejects
// its claims on many objects, and creates many bindings with conflicting names. This must not write
// objects, or end or hide the provider's watch.
func consumers(t *testing.T, w *world) {
	const objects, changes = 50, 15
	group := w.id + ".consumed.example"
	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch"]`
	code, body := w.quiet.schema(t, "a", group, "", 1)
	require.Equal(t, http.StatusCreated, code, "%s", body)
	w.quiet.export(t, w.id, offer("a", group), claim+`}`)
	accept := func(u *tenant, name, state string) {
		body := map[string]any{}
		require.Eventually(t, func() bool {
			require.NoError(t, json.Unmarshal(u.must(t, http.MethodGet, apisV2+"apibindings/"+name, ""), &body))
			spec, _ := body["spec"].(map[string]any)
			spec["permissionClaims"] = json.RawMessage(`[` + claim + `,"state":"` + state + `","selector":{"matchAll":true}}]`)
			text, err := json.Marshal(body)
			require.NoError(t, err)
			code, _, err := u.call(t.Context(), http.MethodPut, apisV2+"apibindings/"+name, string(text))
			return err == nil && code == http.StatusOK
		}, testTimeout, tick, "the claim was not %s", state)
		u.untilBinding(t, name, "updated with the applied claims", func(b *binding) bool {
			return (state == "Accepted") == (len(b.Status.AppliedPermissionClaims) == 1)
		})
	}
	for _, u := range []*tenant{w.quiet, w.attacker} {
		u.bindTo(t, w.id, "root:quiet", w.id)
		u.untilBinding(t, w.id, "Ready", ready)
	}
	accept(w.quiet, w.id, "Accepted")
	for n := range objects {
		w.attacker.create(t, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-%d"}}`, w.id, n))
	}
	versions := func() string {
		var list struct {
			Items []struct {
				Metadata struct{ Name, ResourceVersion string }
			}
		}
		require.NoError(t, json.Unmarshal(w.attacker.must(t, http.MethodGet, configMaps, ""), &list))
		return fmt.Sprint(list.Items)
	}
	before := versions()
	events := w.operator.stream(t, "/services/apiexport/"+w.quiet.cluster(t)+"/"+w.id+"/clusters/*/api/v1/configmaps?watch=true")
	for n := range changes {
		accept(w.attacker, w.id, []string{"Accepted", "Rejected"}[n%2])
	}
	require.Equal(t, before, versions(), "objects were written")
	w.quiet.create(t, configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"own-`+w.id+`"}}`)
	received := 0
	for name := ""; name != "own-"+w.id; {
		require.True(t, events.Scan(), "the watch of the virtual workspace has ended")
		var e struct {
			Object struct{ Metadata struct{ Name string } }
		}
		require.NoError(t, json.Unmarshal(events.Bytes(), &e))
		if name = e.Object.Metadata.Name; strings.HasPrefix(name, w.id) {
			received++
		}
	}
	require.LessOrEqual(t, received, changes*objects, "repeated events of a change")

	manyBindings(t, w, group)
}

// manyBindings binds and unbinds repeatedly, and creates bindings with conflicting names.
func manyBindings(t *testing.T, w *world, group string) {
	const changes, many = 15, 100
	w.attacker.unbind(t, w.id)
	for range changes {
		w.attacker.bindTo(t, w.id, "root:quiet", w.id)
		w.attacker.unbind(t, w.id)
	}
	w.attacker.bindTo(t, w.id, "root:quiet", w.id)
	w.attacker.untilBinding(t, w.id, "Ready", ready)
	for n := range many {
		w.attacker.bindTo(t, fmt.Sprintf("%s-%d", w.id, n), "root:quiet", w.id)
	}
	w.attacker.untilBinding(t, fmt.Sprintf("%s-%d", w.id, many-1), "rejected because of the name conflict", func(b *binding) bool { return b.condition("InitialBindingCompleted") == "False NamingConflicts" })
	require.Equal(t, 1, w.copies(t, group), "more than one copy of the schema")
	w.quiet.bindTo(t, "another-"+w.id, "root:quiet", w.id)
	w.quiet.untilBinding(t, "another-"+w.id, "rejected because of the name conflict", func(b *binding) bool { return b.condition("InitialBindingCompleted") == "False NamingConflicts" })
	w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "mine", ""))
	w.quiet.unbind(t, "another-"+w.id)
	w.quiet.must(t, http.MethodGet, "/apis/"+group+"/v1/things/mine", "")
	const bindings = apisV2 + "apibindings?labelSelector=test%3Dbindings" // not the default bindings, which other rows need
	w.attacker.must(t, http.MethodDelete, bindings, "")
	require.Eventually(t, func() bool {
		var list struct{ Items []any }
		code, text, err := w.attacker.call(t.Context(), http.MethodGet, bindings, "")
		return err == nil && code == http.StatusOK && json.Unmarshal(text, &list) == nil && len(list.Items) == 0
	}, testTimeout, tick, "bindings of the attacker were not removed")
	require.NotContains(t, string(w.attacker.must(t, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", "")), "things."+group)
}
