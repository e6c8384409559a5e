package noisyneighbors

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mostAllocated is the maximum allocation of a rejected request, about ten times the largest body.
const mostAllocated = 256 << 20

// rejected sends a request that must be rejected with a code and a message before it allocates much memory.
func rejected(t *testing.T, code int, message string, send func() (int, []byte, error)) {
	t.Helper()
	before := allocated()
	got, body, err := send()
	after := allocated()
	require.NoError(t, err)
	require.Equal(t, code, got, "%.500s", body)
	require.Contains(t, string(body), message)
	require.Less(t, after-before, uint64(mostAllocated), "allocated bytes")
}

// defined sends a definition of things with changes.
func (u *tenant) defined(t *testing.T, group string, change func(*apiextensionsv1.CustomResourceDefinitionVersion)) (int, []byte, error) {
	t.Helper()
	crd := things(group, "v1")
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	change(&crd.Spec.Versions[0])
	body, err := json.Marshal(crd)
	require.NoError(t, err)
	return u.call(t.Context(), http.MethodPost, definitionsPath, string(body))
}

// property adds a property to a version.
func property(name string, schema apiextensionsv1.JSONSchemaProps) func(*apiextensionsv1.CustomResourceDefinitionVersion) {
	return func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
		v.Schema.OpenAPIV3Schema.Properties[name] = schema
	}
}

func listOf(item apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &item}}
}

// withList defines things with a list, and returns a function that creates one with n items.
func (u *tenant) withList(t *testing.T, group string, list apiextensionsv1.JSONSchemaProps) (create func(item string, n int) (int, []byte, error)) {
	t.Helper()
	crd := things(group, "v1")
	property("l", list)(&crd.Spec.Versions[0])
	u.define(t, crd)
	return func(item string, n int) (int, []byte, error) {
		body := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing","metadata":{"name":"one"},"l":[%s]}`, group, repeated(item, n))
		return u.call(t.Context(), http.MethodPost, "/apis/"+group+"/v1/things", body)
	}
}

// defaults sends objects to which defaults would add much memory.
func defaults(t *testing.T, w *world) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k%d":1`, i)
	}
	defaulted := func(n int) apiextensionsv1.JSONSchemaProps {
		return listOf(apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"d": {Type: "object", XPreserveUnknownFields: new(true), Default: &apiextensionsv1.JSON{Raw: []byte("{" + strings.Join(keys[:n], ",") + "}")}},
		}})
	}
	rejected(t, http.StatusUnprocessableEntity, "items.properties[d].default", func() (int, []byte, error) {
		return w.attacker.defined(t, w.id+".large.example", property("l", defaulted(1000)))
	})
	create := w.attacker.withList(t, w.id+".defaults.example", defaulted(100))
	rejected(t, http.StatusRequestEntityTooLarge, "the defaults in the schema add more than", func() (int, []byte, error) { return create("{}", 60_000) })
}

// documents requests the OpenAPI documents of many definitions after each change.
func documents(t *testing.T, w *world) {
	many := 40
	if !testing.Short() {
		many = 150
	}
	for i := range many {
		w.attacker.define(t, things(fmt.Sprintf("n%d.%s.documents.example", i, w.id), "v1"))
	}
	before := inUse()
	for i := range 3 {
		made := w.attacker.define(t, things(fmt.Sprintf("m%d.%s.documents.example", i, w.id), "v1"))
		peak := peakWhile(func() { w.attacker.must(t, http.MethodGet, "/openapi/v2", "") })
		require.Less(t, peak, uint64(many)<<20, "the heap grows by %d while the document of %d definitions is generated", peak, many)
		require.NoError(t, w.attacker.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	}
	requireHeapGrowth(t, before, int64(many)<<20/2, "more than half a megabyte for each definition")
}
