package apis

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testConversion checks that the rules of an APIConversion convert between the versions of a bound API for all consumers, also after
// the deletion of the APIConversion.
func testConversion(t *testing.T, e *kit.Env) {
	const name, conversions = "v1.people.example.org", kit.APIsV1Alpha1 + "apiconversions"
	const v1, v2 = "/apis/example.org/v1/namespaces/default/people", "/apis/example.org/v2/namespaces/default/people"
	provider, k := kit.NewWorkspaceClient(e, "conversion-provider").ForTest(t), kit.NewWorkspaceClient(e, "conversion-consumer").ForTest(t)
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", kit.PeopleSchema, name)

	// Rules must match the schema.
	for _, tc := range []struct{ body, field string }{
		{strings.Replace(kit.Conversion(name, "self"), ".spec.first", ".spec.nope", 1), "spec.conversions[0].rules[0].field"},
		{strings.Replace(kit.Conversion(name, "self"), `"from":"v1"`, `"from":"v7"`, 1), "spec.conversions[0].from"},
		{kit.Conversion(name, "self + 1"), "spec.conversions[0].rules[1].transformation"},
		{kit.Conversion(name, strings.Repeat("[1,2,3,4,5,6,7,8,9,10].map(x, ", 8)+"x"+strings.Repeat(")", 8)), "spec.conversions[0].rules[1].transformation"},
		{strings.Replace(kit.Conversion(name, "self"), ".spec.age", ".spec.none", 1), "spec.conversions[1].preserve[0]"},
	} {
		status := kit.RequireStatus(t, k.Config, kit.Request{Method: http.MethodPost, Path: "/clusters/" + provider.ClusterName + conversions, Body: kit.WithKind(conversions, tc.body), Header: http.Header{"Content-Type": {"application/json"}}}, http.StatusUnprocessableEntity)
		require.Equal(t, tc.field, status.Details.Causes[0].Field, status.Message)
	}

	provider.Create(conversions, "%s", kit.Conversion(name, "self.upperAscii()"))
	provider.CreateExport("people", name)
	k.BindReady("people", provider, "people")
	k.Create(v1, `{"apiVersion":"example.org/v1","kind":"Person","metadata":{"name":"ada"},"spec":{"first":"Ada","last":"Lovelace"}}`)
	require.Equal(t, map[string]any{"name": map[string]any{"first": "Ada", "last": "LOVELACE"}}, k.Get(v2 + "/ada").Object["spec"])

	// If the other version does not have a field, it must be preserved, also by writes in that version.
	k.Create(v2, `{"apiVersion":"example.org/v2","kind":"Person","metadata":{"name":"bob"},"spec":{"name":{"first":"Bob","last":"B"},"age":7}}`)
	bob := k.Get(v1 + "/bob")
	require.Equal(t, map[string]any{"first": "Bob", "last": "B"}, bob.Object["spec"])
	require.JSONEq(t, `{"spec.age":7}`, bob.GetAnnotations()["preserve.conversion.apis.kcp.io/v2"])
	k.Patch(v1+"/bob", `{"spec":{"first":"Robert"}}`)
	bob = k.Get(v2 + "/bob")
	require.Equal(t, map[string]any{"name": map[string]any{"first": "Robert", "last": "B"}, "age": 7.0}, bob.Object["spec"])
	require.Empty(t, bob.GetAnnotations()["preserve.conversion.apis.kcp.io/v2"])
	k.Patch(v2+"/bob?fieldManager=x&force=true", `{"apiVersion":"example.org/v2","kind":"Person","metadata":{"name":"bob"},"spec":{"name":{"first":"Bob"}}}`)
	require.Equal(t, "Bob", kit.Field(k.Get(v1+"/bob"), "spec", "first"))

	// If the rules change, they are applied to consumers, and their watches end.
	clients, err := e.ShardClients["root"].Cluster(kit.Path(k.ClusterName)).Dynamic()
	require.NoError(t, err)
	w, err := clients.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v2", Resource: "people"}).Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	provider.Patch(conversions+"/"+name, kit.Conversion(name, "'the ' + (self == 'bad' ? string(1/0) : self)"))
	untilEnded(t, "with the former rules", w)
	k.Eventually("the new rules apply", func() bool { return kit.Field(k.Get(v2+"/ada"), "spec", "name", "last") == "the Lovelace" })

	// If an object cannot be converted, it must be rejected in both versions.
	status := kit.RequireStatus(t, k.Config, kit.Request{Method: http.MethodPatch, Path: "/clusters/" + k.ClusterName + v1 + "/ada", Body: `{"spec":{"last":"bad"}}`, Header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusUnprocessableEntity)
	require.Contains(t, status.Message, "cannot be converted to example.org/v2: spec.conversions[0].rules[1] of the APIConversion")

	// Rules apply after the deletion of the APIConversion, and to schemas that were bound without rules.
	provider.Delete(conversions + "/" + name)
	require.Equal(t, "the Lovelace", kit.Field(k.Get(v2+"/ada"), "spec", "name", "last"))
	const late = "v2.people.example.org"
	other := kit.NewWorkspaceClient(e, "conversion-late").ForTest(t)
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", kit.PeopleSchema, late)
	provider.CreateExport("late", late)
	other.BindReady("late", provider, "late")
	other.Create(v1, `{"apiVersion":"example.org/v1","kind":"Person","metadata":{"name":"eve"},"spec":{"last":"E"}}`)
	require.Empty(t, other.Get(v2 + "/eve").Object["spec"])
	provider.Create(conversions, "%s", kit.Conversion(late, "self"))
	other.Eventually("the rules apply", func() bool { return kit.Field(other.Get(v2+"/eve"), "spec", "name", "last") == "E" })
	require.Equal(t, "the Lovelace", kit.Field(k.Get(v2+"/ada"), "spec", "name", "last"), "the rules of other schemas must not change")
	testEarlyRules(t, provider, kit.NewWorkspaceClient(e, "conversion-early").ForTest(t))
}

// testEarlyRules checks rules that are created before their schema and do not match it: bindings report it, and become Ready when
// the rules are fixed or deleted.
func testEarlyRules(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	const conversions = kit.APIsV1Alpha1 + "apiconversions"
	for prefix, fix := range map[string]func(name string){
		"v3": func(name string) {
			provider.Patch(conversions+"/"+name, kit.Conversion(name, "self"))
		},
		// Selectable fields of v2 must not be computed.
		"v5": func(name string) {
			provider.Patch(conversions+"/"+name, `{"spec":{"conversions":[{"from":"v1","to":"v2","rules":[{"field":".spec.first","destination":".spec.name.first"}]}]}}`)
		},
		"v4": func(name string) { provider.Do(http.StatusOK, http.MethodDelete, conversions+"/"+name, "") },
	} {
		name, schema, rules, wrong := prefix+".people.example.org", kit.PeopleSchema, kit.Conversion(prefix+".people.example.org", "self"), "spec.conversions[0].rules[0].field"
		if prefix == "v5" {
			schema, wrong = strings.Replace(schema, `"storage":false,`, `"storage":false,"selectableFields":[{"jsonPath":".spec.name.last"}],`, 1), "spec.conversions[0].rules[1].destination"
		} else {
			rules = strings.Replace(rules, ".spec.first", ".spec.nope", 1)
		}
		provider.Create(conversions, "%s", rules)
		provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", schema, name)
		provider.CreateExport(prefix, name)
		k.Bind(prefix, provider, prefix)
		b := k.UntilBinding(prefix, "InitialBindingCompleted", "False APIResourceSchemaInvalid")
		require.Contains(t, fmt.Sprint(kit.Field(b, "status", "conditions")), wrong)
		if prefix == "v5" { // the schema exists now
			status := kit.RequireStatus(t, provider.Config, kit.Request{Method: http.MethodPatch, Path: "/clusters/" + provider.ClusterName + conversions + "/" + name, Body: kit.Conversion(name, "self + 'x'"), Header: http.Header{"Content-Type": {"application/merge-patch+json"}}}, http.StatusUnprocessableEntity)
			require.Equal(t, wrong, status.Details.Causes[0].Field, status.Message)
		}
		fix(name)
		k.UntilBinding(prefix, "Ready", "True <nil>")
		k.Delete(kit.APIsV1Alpha2 + "apibindings/" + prefix)
	}
}

// newConverter starts a webhook that converts between the versions of kit.PeopleSchema and counts the objects, and returns its client
// configuration.
func newConverter(t *testing.T, converted *atomic.Int64) (clientConfig string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			person := &unstructured.Unstructured{}
			if err := person.UnmarshalJSON(raw.Raw); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			spec, _ := kit.Field(person, "spec").(map[string]any)
			if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v2") {
				person.Object["spec"] = map[string]any{"name": map[string]any{"first": spec["first"], "last": spec["last"]}}
			} else {
				person.Object["spec"] = spec["name"]
			}
			person.SetAPIVersion(review.Request.DesiredAPIVersion)
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: person})
			converted.Add(1)
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return fmt.Sprintf(`{"url":%q,"caBundle":%q}`, server.URL, base64.StdEncoding.EncodeToString(ca))
}

// testWebhookConversion checks conversion by the webhook in a schema.
func testWebhookConversion(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	const name = "v1.people.example.org"
	const v1, v2 = "/apis/example.org/v1/namespaces/default/people", "/apis/example.org/v2/namespaces/default/people"
	var converted atomic.Int64
	webhook := `"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":` + newConverter(t, &converted) + `}}`
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", "%s", strings.Replace(fmt.Sprintf(kit.PeopleSchema, name), `"conversion":{"strategy":"None"}`, webhook, 1))
	provider.CreateExport("people", name)
	k.BindPathReady("people", provider.ClusterName, "people")
	k.Create(v1, `{"apiVersion":"example.org/v1","kind":"Person","metadata":{"name":"ada"},"spec":{"first":"Ada","last":"Lovelace"}}`)
	require.Equal(t, map[string]any{"name": map[string]any{"first": "Ada", "last": "Lovelace"}}, k.Get(v2 + "/ada").Object["spec"])
	k.Create(v2, `{"apiVersion":"example.org/v2","kind":"Person","metadata":{"name":"bob"},"spec":{"name":{"first":"Bob","last":"B"}}}`)
	require.Equal(t, map[string]any{"first": "Bob", "last": "B"}, k.Get(v1 + "/bob").Object["spec"])
	k.Patch(v2+"/ada", `{"spec":{"name":{"last":"King"}}}`)
	require.Equal(t, "King", kit.Field(k.Get(v1+"/ada"), "spec", "last"))
	require.Equal(t, []string{"ada", "bob"}, kit.ItemNames(k.Get(v2)))
	require.Positive(t, converted.Load())
	provider.Delete(kit.APIsV1Alpha2 + "apiexports/people")
	require.Equal(t, "King", kit.Field(k.Get(v2+"/ada"), "spec", "name", "last"), "the webhook must convert after the deletion of the export")
}
