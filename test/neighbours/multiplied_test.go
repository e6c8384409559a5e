package neighbours

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mostAllocated is what a rejected request may allocate: some ten times the largest body.
const mostAllocated = 256 << 20

// rejected sends requests that must be rejected, each with a code and a message, before anything is multiplied.
func rejected(t *testing.T, code int, says string, send func() (int, []byte, error)) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, body, err := send()
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Equal(t, code, got, "%.500s", body)
	require.Contains(t, string(body), says)
	if !*latencyFlag {
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(mostAllocated), "bytes that were allocated")
	}
}

// defined sends a definition of things with other properties.
func (u *tenant) defined(t *testing.T, group string, change func(*apiextensionsv1.CustomResourceDefinitionVersion)) (int, []byte, error) {
	t.Helper()
	crd := things(group, "v1")
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	change(&crd.Spec.Versions[0])
	body, err := json.Marshal(crd)
	require.NoError(t, err)
	return u.call(t.Context(), http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(body))
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

// withList defines things that have a list, and returns what creates one with n items.
func (u *tenant) withList(t *testing.T, group string, list apiextensionsv1.JSONSchemaProps) (create func(item string, n int) (int, []byte, error)) {
	t.Helper()
	crd := things(group, "v1")
	property("l", list)(&crd.Spec.Versions[0])
	u.define(t, crd)
	return func(item string, n int) (int, []byte, error) {
		items := make([]string, n)
		for i := range items {
			items[i] = strings.ReplaceAll(item, "#", fmt.Sprint(i))
		}
		body := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing","metadata":{"name":"one"},"l":[%s]}`, group, strings.Join(items, ","))
		return u.call(t.Context(), http.MethodPost, "/apis/"+group+"/v1/things", body)
	}
}

// columns: thousands of printer columns on a field of 1 MB.
func columns(t *testing.T, w *world) {
	rejected(t, http.StatusUnprocessableEntity, "spec.versions[0].additionalPrinterColumns", func() (int, []byte, error) {
		return w.attacker.defined(t, w.mark+".columns.example", func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
			for i := range 3000 {
				v.AdditionalPrinterColumns = append(v.AdditionalPrinterColumns, apiextensionsv1.CustomResourceColumnDefinition{Name: fmt.Sprint("c", i), Type: "string", JSONPath: ".text"})
			}
		})
	})
}

// patterns: regular expressions with large programs, wherever a tenant can write them.
func patterns(t *testing.T, w *world) {
	large := strings.Repeat("a{0,1000}", 100)
	for _, pattern := range []string{strings.Repeat(".{1000}", 300), large} {
		rejected(t, http.StatusUnprocessableEntity, "properties[x].pattern", func() (int, []byte, error) {
			return w.attacker.defined(t, w.mark+".patterns.example", property("x", apiextensionsv1.JSONSchemaProps{Type: "string", Pattern: pattern}))
		})
	}
	rejected(t, http.StatusUnprocessableEntity, "x-kubernetes-validations[0].rule", func() (int, []byte, error) {
		return w.attacker.defined(t, w.mark+".patterns.example", property("x", apiextensionsv1.JSONSchemaProps{
			Type: "string", XValidations: apiextensionsv1.ValidationRules{{Rule: "self.matches('" + large + "')"}},
		}))
	})
	rejected(t, http.StatusUnprocessableEntity, "spec.validations[0].expression", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, policiesPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},
			"spec":{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["*"],"resources":["configmaps"]}]},"validations":[{"expression":"object.metadata.name.matches('%s')"}]}}`, w.mark, large))
	})
	rejected(t, http.StatusUnprocessableEntity, "spec.jwt[0].claimMappings.username.expression", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, "/apis/tenancy.kcp.io/v1alpha1/workspaceauthenticationconfigurations", fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceAuthenticationConfiguration",
			"metadata":{"name":%q},"spec":{"jwt":[{"issuer":{"url":"https://issuer.example","audiences":["a"],"audienceMatchPolicy":"MatchAny"},"claimMappings":{"username":{"expression":"claims.sub.find('%s')"},"groups":{"expression":"[]"}}}]}}`, w.mark, large))
	})
}

// defaults: defaults of a definition, added to each of many items.
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
		return w.attacker.defined(t, w.mark+".large.example", property("l", defaulted(1000)))
	})
	create := w.attacker.withList(t, w.mark+".defaults.example", defaulted(100))
	rejected(t, http.StatusRequestEntityTooLarge, "the defaults in the schema add more than", func() (int, []byte, error) { return create("{}", 60_000) })
}

// alternatives: items that are validated with each of many schemas.
func alternatives(t *testing.T, w *world) {
	chosen := func(n int) apiextensionsv1.JSONSchemaProps {
		item := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
		for i := range n {
			item.AnyOf = append(item.AnyOf, apiextensionsv1.JSONSchemaProps{Required: []string{fmt.Sprint("k", i)}})
		}
		return listOf(item)
	}
	rejected(t, http.StatusUnprocessableEntity, "has 2000 schemas in allOf, anyOf, oneOf and not", func() (int, []byte, error) {
		return w.attacker.defined(t, w.mark+".large.example", property("l", chosen(2000)))
	})
	create := w.attacker.withList(t, w.mark+".alternatives.example", chosen(100))
	rejected(t, http.StatusRequestEntityTooLarge, "comparisons of values with schemas", func() (int, []byte, error) { return create(`{"k99":1}`, 60_000) })
}

// invalid: an object with many validation errors, each of which is compared with all others.
func invalid(t *testing.T, w *world) {
	create := w.attacker.withList(t, w.mark+".invalid.example", listOf(apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true), Required: []string{"x"}}))
	rejected(t, http.StatusUnprocessableEntity, "these are the first 100 errors of more", func() (int, []byte, error) { return create("{}", 100_000) })
}

// keyed: lists that are merged by key, of custom resources and built-in kinds.
func keyed(t *testing.T, w *world) {
	set := listOf(apiextensionsv1.JSONSchemaProps{Type: "string"})
	set.XListType = new("set")
	group := w.mark + ".keyed.example"
	create := w.attacker.withList(t, group, set)
	rejected(t, http.StatusRequestEntityTooLarge, "at most 5000 allowed", func() (int, []byte, error) { return create(`"s#"`, 100_000) })
	secrets := make([]string, 50_000)
	for i := range secrets {
		secrets[i] = fmt.Sprintf(`{"name":"s%d"}`, i)
	}
	rejected(t, http.StatusRequestEntityTooLarge, "at most 1000 allowed", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", fmt.Sprintf(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":%q},"secrets":[%s]}`, w.mark, strings.Join(secrets, ",")))
	})
}

// patches: patches that copy a list for each operation, or compare each entry with each.
func patches(t *testing.T, w *world) {
	group := w.mark + ".patches.example"
	create := w.attacker.withList(t, group, listOf(apiextensionsv1.JSONSchemaProps{Type: "integer"}))
	code, body, err := create("0", 100_000)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, code, "%.300s", body)
	patch := func(path string, mediaType types.PatchType, body string) (int, []byte, error) {
		var code int
		result := w.attacker.kube.CoreV1().RESTClient().Patch(mediaType).AbsPath(path).Body([]byte(body)).Do(t.Context())
		answer, err := result.StatusCode(&code).Raw()
		if code != 0 {
			err = nil
		}
		return code, answer, err
	}
	rejected(t, http.StatusRequestEntityTooLarge, "at most 1000 allowed", func() (int, []byte, error) {
		return patch("/apis/"+group+"/v1/things/one", types.JSONPatchType, "["+strings.TrimSuffix(strings.Repeat(`{"op":"add","path":"/l/0","value":1},`, 9000), ",")+"]")
	})
	rejected(t, http.StatusRequestEntityTooLarge, "at most 1000 allowed", func() (int, []byte, error) {
		return patch("/api/v1/namespaces/default/serviceaccounts/default", types.StrategicMergePatchType, `{"secrets":[`+strings.TrimSuffix(strings.Repeat(`{"name":"a"},`, 20_000), ",")+"]}")
	})
}

// documents: the OpenAPI documents of many definitions, which the attacker asks for after each change.
func documents(t *testing.T, w *world) {
	const many = 40
	for i := range many {
		w.attacker.define(t, things(fmt.Sprintf("n%d.%s.documents.example", i, w.mark), "v1"))
	}
	before := heap()
	for i := range 3 {
		made := w.attacker.define(t, things(fmt.Sprintf("m%d.%s.documents.example", i, w.mark), "v1"))
		w.attacker.must(t, http.MethodGet, "/openapi/v2", "")
		require.NoError(t, w.attacker.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	}
	requireHeapGrowth(t, before, many<<20/2, "half a megabyte for each definition")
}
