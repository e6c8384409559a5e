package neighbours

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

// everything is what can be claimed without an identity.
var everything = map[string][]string{
	"":                             {"configmaps", "secrets", "namespaces", "serviceaccounts", "events", "resourcequotas"},
	"rbac.authorization.k8s.io":    {"roles", "rolebindings", "clusterroles", "clusterrolebindings"},
	"admissionregistration.k8s.io": {"validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies"},
	"apiextensions.k8s.io":         {"customresourcedefinitions"},
	"core.kcp.io":                  {"logicalclusters"},
	"coordination.k8s.io":          {"leases"},
	"apis.kcp.io":                  {"apiexports", "apiresourceschemas", "apibindings"},
}

// cluster is the name of the tenant's logical cluster.
func (u *tenant) cluster(t *testing.T) string {
	t.Helper()
	var lc struct {
		Metadata struct{ Annotations map[string]string }
	}
	require.NoError(t, json.Unmarshal(u.must(t, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", ""), &lc))
	require.NotEmpty(t, lc.Metadata.Annotations["kcp.io/cluster"])
	return lc.Metadata.Annotations["kcp.io/cluster"]
}

// schema makes a schema of things of a group, with properties and versions, which goes when the test ends.
func (u *tenant) schema(t *testing.T, prefix, group, properties string, versions int) (code int, says []byte) {
	t.Helper()
	all := make([]string, 0, versions)
	for n := range versions {
		all = append(all, fmt.Sprintf(`{"name":"v%d","served":true,"storage":%t,"schema":{"type":"object","properties":{"text":{"type":"string"}%s}}}`, n+1, n == 0, properties))
	}
	t.Cleanup(func() { u.drop(t, apisV1+"apiresourceschemas/"+prefix+".things."+group) })
	code, says, err := u.call(t.Context(), http.MethodPost, apisV1+"apiresourceschemas", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":"%[1]s.things.%[2]s"},"spec":{"group":%[2]q,"scope":"Cluster","conversion":{"strategy":"None"},"names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},"versions":[%[3]s]}}`,
		prefix, group, strings.Join(all, ",")))
	require.NoError(t, err)
	return code, says
}

// export makes an export, which goes when the test ends, or changes it. What it offers and claims are items of lists.
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
		code, says, err := u.call(t.Context(), method, to, string(body))
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusOK, http.StatusCreated, http.StatusConflict}, code, "%.300s", says)
		return code != http.StatusConflict
	}, testTimeout, tick, "the export is written")
	if method == http.MethodPost {
		t.Cleanup(func() { u.drop(t, path+"/"+name) })
	}
}

func offer(prefix, group string) string {
	return fmt.Sprintf(`{"group":%[2]q,"name":"things","schema":"%[1]s.things.%[2]s","storage":{"crd":{}}}`, prefix, group)
}

// bindTo makes a binding, which goes when the test ends. Where a connection breaks, the client may have sent it twice.
func (u *tenant) bindTo(t *testing.T, name, path, export string) {
	t.Helper()
	t.Cleanup(func() { u.drop(t, apisV2+"apibindings/"+name) })
	code, content, err := u.call(t.Context(), http.MethodPost, apisV2+"apibindings", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, name, path, export))
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

func (u *tenant) until(t *testing.T, name, what string, done func(b *binding) bool) {
	t.Helper()
	var last []byte
	if !assert.Eventually(t, func() bool {
		b := &binding{}
		code, text, err := u.call(t.Context(), http.MethodGet, apisV2+"apibindings/"+name, "")
		last = text
		return err == nil && code == http.StatusOK && json.Unmarshal(text, b) == nil && done(b)
	}, testTimeout, tick, "binding %s: %s", name, what) {
		require.FailNow(t, "it was", "%s", last)
	}
}

func ready(b *binding) bool { return b.condition("Ready") == "True" }

func (u *tenant) unbind(t *testing.T, name string) {
	t.Helper()
	u.must(t, http.MethodDelete, apisV2+"apibindings/"+name, "")
	require.Eventually(t, func() bool {
		code, _, err := u.call(t.Context(), http.MethodGet, apisV2+"apibindings/"+name, "")
		return err == nil && code == http.StatusNotFound
	}, testTimeout, tick, "binding %s goes", name)
}

// copies counts the shard's copies of schemas of a group.
func (w *world) copies(t *testing.T, group string) int {
	t.Helper()
	return strings.Count(string(w.masters.must(t, http.MethodGet, boundSchemas, "")), `.things.`+group+`"`)
}

// exports: the attacker offers schemas that are as large as can be, claims everything in
// many exports, and changes one all the time that the quiet tenant has bound. What the
// quiet tenant has is neither seen, nor larger, nor interrupted by that.
func exports(t *testing.T, w *world) {
	documents := func() []byte { return w.quiet.must(t, http.MethodGet, "/openapi/v3", "") }
	group := w.mark + ".exported.example"
	code, says := w.attacker.schema(t, "a", group, "", 1)
	require.Equal(t, http.StatusCreated, code, "%s", says)
	code, says = w.attacker.schema(t, "b", group, `,"more":{"type":"string"}`, 1)
	require.Equal(t, http.StatusCreated, code, "%s", says)
	all := make([]string, 0, 20)
	for of, resources := range everything {
		for _, resource := range resources {
			all = append(all, fmt.Sprintf(`{"group":%q,"resource":%q,"verbs":["*"]}`, of, resource))
		}
	}
	w.attacker.export(t, w.mark, offer("a", group), strings.Join(all, ","))
	w.quiet.bindTo(t, w.mark, "root:attacker", w.mark)
	w.quiet.until(t, w.mark, "it is Ready", ready)

	// Claims for everything, of which nobody has accepted one.
	for n := range 10 {
		w.attacker.export(t, fmt.Sprintf("%s-%d", w.mark, n), "", strings.Join(all, ","))
	}
	mine := w.quiet.must(t, http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"unclaimed-`+w.mark+`"}}`)
	require.NotContains(t, string(mine), "claimed.internal.apis.kcp.io")
	view := "/services/apiexport/" + w.attacker.cluster(t) + "/" + w.mark + "/clusters/*"
	for of, resources := range everything {
		prefix := map[bool]string{true: "/api/v1/", false: "/apis/" + of + "/v1/"}[of == ""]
		switch of {
		case "core.kcp.io":
			prefix = "/apis/core.kcp.io/v1alpha1/"
		case "apis.kcp.io":
			continue // the bindings to an export are its provider's to see
		}
		for _, resource := range resources {
			var list struct{ Items []any }
			require.NoError(t, json.Unmarshal(w.masters.must(t, http.MethodGet, view+prefix+resource, ""), &list))
			require.Empty(t, list.Items, resource)
		}
	}
	t.Run("schemas", func(t *testing.T) { largeSchemas(t, w, documents) })

	// Another schema again and again.
	events := w.quiet.stream(t, "/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name%3Dunclaimed-"+w.mark)
	const swaps = 20
	for n := range swaps {
		w.attacker.export(t, w.mark, offer([]string{"b", "a"}[n%2], group), strings.Join(all, ","))
	}
	w.quiet.until(t, w.mark, "it follows", func(b *binding) bool {
		return len(b.Status.BoundResources) == 1 && strings.HasPrefix(b.Status.BoundResources[0].Schema.Name, "a.") && ready(b)
	})
	require.LessOrEqual(t, w.copies(t, group), 2, "one copy of each schema, however often it is bound")
	w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "mine", ""))
	w.quiet.must(t, http.MethodDelete, "/api/v1/namespaces/default/configmaps/unclaimed-"+w.mark, "")
	for kind := ""; kind != "DELETED"; {
		require.True(t, events.Scan(), "the quiet tenant's watch goes on")
		var e struct{ Type string }
		require.NoError(t, json.Unmarshal(events.Bytes(), &e))
		kind = e.Type
	}
}

// stream opens a watch, to be read until the test ends.
func (u *tenant) stream(t *testing.T, path string) *bufio.Scanner {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u.config.Host+path, http.NoBody)
	require.NoError(t, err)
	response, err := u.http.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	events := bufio.NewScanner(response.Body)
	events.Buffer(nil, 1<<20)
	return events
}

// largeSchemas: schemas near the limits, and above, are taken or refused, and nobody's
// documents are larger for it.
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
		group := strings.ReplaceAll(name, " ", "-") + "." + w.mark + ".example"
		code, says := w.attacker.schema(t, "v1", group, tc.properties, tc.versions)
		require.Contains(t, tc.codes, code, "%s: %.300s", name, says)
		if code != http.StatusCreated {
			continue
		}
		w.attacker.export(t, group, offer("v1", group), "")
		w.attacker.bindTo(t, group, "root:attacker", group)
		w.attacker.until(t, group, "it is Ready", ready)
		require.LessOrEqual(t, w.copies(t, group), 1, "%s", name)
		w.attacker.unbind(t, group)
	}
	require.Len(t, documents(), len(before), "the documents of the quiet tenant")
}

// consumers: the attacker binds and unbinds the quiet tenant's API, accepts and rejects
// its claims over many objects, and makes many bindings of which one at most can have what
// it names. That writes no object, and neither ends nor hides what the provider sees of others.
func consumers(t *testing.T, w *world) {
	const objects, changes = 50, 15
	group := w.mark + ".consumed.example"
	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch"]`
	code, says := w.quiet.schema(t, "a", group, "", 1)
	require.Equal(t, http.StatusCreated, code, "%s", says)
	w.quiet.export(t, w.mark, offer("a", group), claim+`}`)
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
		}, testTimeout, tick, "the claim is %s", state)
		u.until(t, name, "it has effect", func(b *binding) bool {
			return (state == "Accepted") == (len(b.Status.AppliedPermissionClaims) == 1)
		})
	}
	for _, u := range []*tenant{w.quiet, w.attacker} {
		u.bindTo(t, w.mark, "root:quiet", w.mark)
		u.until(t, w.mark, "it is Ready", ready)
	}
	accept(w.quiet, w.mark, "Accepted")
	for n := range objects {
		w.attacker.create(t, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-%d"}}`, w.mark, n))
	}
	versions := func() string {
		var list struct {
			Items []struct {
				Metadata struct{ Name, ResourceVersion string }
			}
		}
		require.NoError(t, json.Unmarshal(w.attacker.must(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", ""), &list))
		return fmt.Sprint(list.Items)
	}
	before := versions()
	events := w.masters.stream(t, "/services/apiexport/"+w.quiet.cluster(t)+"/"+w.mark+"/clusters/*/api/v1/configmaps?watch=true")
	for n := range changes {
		accept(w.attacker, w.mark, []string{"Accepted", "Rejected"}[n%2])
	}
	require.Equal(t, before, versions(), "no object is written")
	w.quiet.create(t, configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"own-`+w.mark+`"}}`)
	told := 0
	for name := ""; name != "own-"+w.mark; {
		require.True(t, events.Scan(), "the watch through the view goes on")
		var e struct {
			Object struct{ Metadata struct{ Name string } }
		}
		require.NoError(t, json.Unmarshal(events.Bytes(), &e))
		if name = e.Object.Metadata.Name; strings.HasPrefix(name, w.mark) {
			told++
		}
	}
	require.LessOrEqual(t, told, changes*objects, "each change is told once")

	manyBindings(t, w, group)
}

// manyBindings: binding and unbinding, and bindings that wait for the name.
func manyBindings(t *testing.T, w *world, group string) {
	const changes, many = 15, 100
	w.attacker.unbind(t, w.mark)
	for range changes {
		w.attacker.bindTo(t, w.mark, "root:quiet", w.mark)
		w.attacker.unbind(t, w.mark)
	}
	w.attacker.bindTo(t, w.mark, "root:quiet", w.mark)
	w.attacker.until(t, w.mark, "it is Ready", ready)
	for n := range many {
		w.attacker.bindTo(t, fmt.Sprintf("%s-%d", w.mark, n), "root:quiet", w.mark)
	}
	w.attacker.until(t, fmt.Sprintf("%s-%d", w.mark, many-1), "it waits", func(b *binding) bool { return b.condition("InitialBindingCompleted") == "False NamingConflicts" })
	require.Equal(t, 1, w.copies(t, group), "one copy, however many bind it")
	w.quiet.bindTo(t, "another-"+w.mark, "root:quiet", w.mark)
	w.quiet.until(t, "another-"+w.mark, "it waits, too", func(b *binding) bool { return b.condition("InitialBindingCompleted") == "False NamingConflicts" })
	w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "mine", ""))
	w.quiet.unbind(t, "another-"+w.mark)
	w.quiet.must(t, http.MethodGet, "/apis/"+group+"/v1/things/mine", "")
	w.attacker.must(t, http.MethodDelete, apisV2+"apibindings", "")
	require.Eventually(t, func() bool {
		var list struct{ Items []any }
		code, text, err := w.attacker.call(t.Context(), http.MethodGet, apisV2+"apibindings", "")
		return err == nil && code == http.StatusOK && json.Unmarshal(text, &list) == nil && len(list.Items) == 0
	}, testTimeout, tick, "all bindings of the attacker go")
	require.NotContains(t, string(w.attacker.must(t, http.MethodGet, "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", "")), "things."+group)
}
