package noisyneighbors

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	authenticationPath   = "/apis/tenancy.kcp.io/v1alpha1/workspaceauthenticationconfigurations"
	mutatingPoliciesPath = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
	mutatingBindingsPath = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
)

// repeated returns n list elements, with # replaced by their indices.
func repeated(element string, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(element, "#", fmt.Sprint(i))
	}
	return strings.Join(all, ",")
}

// columns prints a field with 1 MB in thousands of columns, in columns of many objects, and in one that descends.
func columns(t *testing.T, w *world) {
	with := func(n int, path string) func(*apiextensionsv1.CustomResourceDefinitionVersion) {
		column := apiextensionsv1.CustomResourceColumnDefinition{Type: "string", JSONPath: path}
		return func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
			for i := range n {
				column.Name = fmt.Sprint("c", i)
				v.AdditionalPrinterColumns = append(v.AdditionalPrinterColumns, column)
			}
		}
	}
	group := w.id + ".columns.example"
	rejected(t, http.StatusUnprocessableEntity, "spec.versions[0].additionalPrinterColumns", func() (int, []byte, error) {
		return w.attacker.defined(t, group, with(3000, ".text"))
	})
	rejected(t, http.StatusUnprocessableEntity, "no recursive descent", func() (int, []byte, error) {
		return w.attacker.defined(t, group, with(1, "..text"))
	})
	crd, path := things(group, "v1"), "/apis/"+group+"/v1/things"
	with(32, ".text")(&crd.Spec.Versions[0])
	w.attacker.define(t, crd)
	for i := range 18 {
		w.attacker.create(t, path, thing(group, "v1", fmt.Sprint("t", i), strings.Repeat("x", 1<<20)))
	}
	rejected(t, http.StatusRequestEntityTooLarge, "set the limit parameter", func() (int, []byte, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.attacker.config.Host+path, http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		response, err := w.attacker.http.Do(r)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		content, err := io.ReadAll(response.Body)
		return response.StatusCode, content, err
	})
}

// patterns uses regular expressions with large programs in all APIs that accept them, see also providers.
func patterns(t *testing.T, w *world) {
	large := strings.Repeat("a{0,1000}", 100)
	for _, pattern := range []string{strings.Repeat(".{1000}", 300), large} {
		rejected(t, http.StatusUnprocessableEntity, "properties[x].pattern", func() (int, []byte, error) {
			return w.attacker.defined(t, w.id+".patterns.example", property("x", apiextensionsv1.JSONSchemaProps{Type: "string", Pattern: pattern}))
		})
	}
	rejected(t, http.StatusUnprocessableEntity, "x-kubernetes-validations[0].rule", func() (int, []byte, error) {
		return w.attacker.defined(t, w.id+".patterns.example", property("x", apiextensionsv1.JSONSchemaProps{
			Type: "string", XValidations: apiextensionsv1.ValidationRules{{Rule: "self.matches('" + large + "')"}},
		}))
	})
	rejected(t, http.StatusUnprocessableEntity, "spec.validations[0].expression", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, policiesPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},
			"spec":{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["*"],"resources":["configmaps"]}]},"validations":[{"expression":"object.metadata.name.matches('%s')"}]}}`, w.id, large))
	})
	rejected(t, http.StatusUnprocessableEntity, "webhooks[0].matchConditions[0].expression", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, registration, fmt.Sprintf(`{"metadata":{"name":%[1]q},
			"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","webhooks":[{
			"name":"%[1]s.a.example","sideEffects":"None","clientConfig":{"url":"https://a"},"admissionReviewVersions":["v1"],
			"matchConditions":[{"name":"m","expression":"object.metadata.name.matches('%[2]s')"}]}]}`, w.id, large))
	})
	rejected(t, http.StatusUnprocessableEntity, "spec.jwt[0].claimMappings.username.expression", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, authenticationPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceAuthenticationConfiguration",
			"metadata":{"name":%q},"spec":{"jwt":[{"issuer":{"url":"https://issuer.example","audiences":["a"],"audienceMatchPolicy":"MatchAny"},"claimMappings":{"username":{"expression":"claims.sub.find('%s')"},"groups":{"expression":"[]"}}}]}}`, w.id, large))
	})
}

// alternatives validates each item with many schemas.
func alternatives(t *testing.T, w *world) {
	chosen := func(n int) apiextensionsv1.JSONSchemaProps {
		item := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
		for i := range n {
			item.AnyOf = append(item.AnyOf, apiextensionsv1.JSONSchemaProps{Required: []string{fmt.Sprint("k", i)}})
		}
		return listOf(item)
	}
	rejected(t, http.StatusUnprocessableEntity, "has 2000 schemas in allOf, anyOf, oneOf and not", func() (int, []byte, error) {
		return w.attacker.defined(t, w.id+".large.example", property("l", chosen(2000)))
	})
	create := w.attacker.withList(t, w.id+".alternatives.example", chosen(100))
	rejected(t, http.StatusRequestEntityTooLarge, "comparisons of values with schemas", func() (int, []byte, error) { return create(`{"k99":1}`, 60_000) })
}

// invalid sends objects with many validation errors, each of which is compared with all others, or
// contains a whole list.
func invalid(t *testing.T, w *world) {
	create := w.attacker.withList(t, w.id+".invalid.example", listOf(apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true), Required: []string{"x"}}))
	rejected(t, http.StatusUnprocessableEntity, "there are more errors", func() (int, []byte, error) {
		return create("{}", 90_000) // bodies with more values are rejected
	})
	for path, body := range map[string]string{
		configMaps:                                  `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"invalid","ownerReferences":[` + repeated(`{"apiVersion":"v1","kind":"ConfigMap","name":"a#","uid":"#","controller":true}`, 900) + `]}}`,
		"/api/v1/namespaces/default/secrets":        `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"invalid"},"data":{` + repeated(`"!#":""`, 20_000) + `}}`,
		"/api/v1/namespaces/default/resourcequotas": `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"invalid"},"spec":{"scopes":[` + repeated(`"S#"`, 50_000) + `]}}`,
	} {
		rejected(t, http.StatusUnprocessableEntity, `\"invalid\" is invalid`, func() (int, []byte, error) {
			code, response, err := w.attacker.call(t.Context(), http.MethodPost, path, body)
			require.Less(t, len(response), 1<<20)
			return code, response, err
		})
	}
}

// keyed sends lists that are merged by key, of custom resources and built-in kinds, and large maps.
func keyed(t *testing.T, w *world) {
	set := listOf(apiextensionsv1.JSONSchemaProps{Type: "string"})
	set.XListType = new("set")
	create := w.attacker.withList(t, w.id+".keyed.example", set)
	rejected(t, http.StatusRequestEntityTooLarge, "at most 5000 allowed", func() (int, []byte, error) { return create(`"s#"`, 100_000) })
	rejected(t, http.StatusRequestEntityTooLarge, "at most 50000 allowed", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"keyed"},"data":{`+repeated(`"k#":""`, 90_000)+`}}`)
	})
	rejected(t, http.StatusRequestEntityTooLarge, "at most 1000 allowed", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", fmt.Sprintf(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":%q},"secrets":[%s]}`, w.id, repeated(`{"name":"s#"}`, 50_000)))
	})
}

// patches sends patches that apply a list by key, or copy a list for each operation, or compare all entries with each
// other, have many values or YAML aliases, and computes such patches in policies.
func patches(t *testing.T, w *world) {
	group := w.id + ".patches.example"
	create := w.attacker.withList(t, group, listOf(apiextensionsv1.JSONSchemaProps{Type: "integer"}))
	code, body, err := create("0", 100_000)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, code, "%.300s", body)
	patch := func(path string, mediaType types.PatchType, body string) (int, []byte, error) {
		var code int
		result := w.attacker.kube.CoreV1().RESTClient().Patch(mediaType).AbsPath(path).Param("fieldManager", "attacker").Body([]byte(body)).Do(t.Context())
		response, err := result.StatusCode(&code).Raw()
		if code != 0 {
			err = nil
		}
		return code, response, err
	}
	rejected(t, http.StatusRequestEntityTooLarge, "at most 1000 allowed", func() (int, []byte, error) {
		return patch("/apis/"+group+"/v1/things/one", types.JSONPatchType, "["+repeated(`{"op":"add","path":"/l/0","value":1}`, 9000)+"]")
	})
	rejected(t, http.StatusRequestEntityTooLarge, "at most 1000 allowed", func() (int, []byte, error) {
		return patch("/api/v1/namespaces/default/serviceaccounts/default", types.StrategicMergePatchType, `{"secrets":[`+repeated(`{"name":"a"}`, 20_000)+"]}")
	})
	rejected(t, http.StatusRequestEntityTooLarge, "at most 1000 allowed", func() (int, []byte, error) {
		return patch("/api/v1/namespaces/default/serviceaccounts/applied", types.ApplyYAMLPatchType,
			`{"apiVersion":"v1","kind":"ServiceAccount","secrets":[`+repeated(`{"name":"s#"}`, 20_000)+"]}")
	})
	rejected(t, http.StatusRequestEntityTooLarge, "with the values of all YAML aliases", func() (int, []byte, error) {
		return patch("/api/v1/namespaces/default/configmaps/aliases", types.ApplyYAMLPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"aliases"},"data":{"a":&a "`+strings.Repeat("x", 10_000)+`",`+repeated(`"k#":*a `, 10_000)+`}}`)
	})
	rejected(t, http.StatusRequestEntityTooLarge, "limit is 200000 values", func() (int, []byte, error) {
		return patch("/api/v1/namespaces/default/configmaps/values", types.ApplyYAMLPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"values"},"l":[`+repeated("0", 1_400_000)+`]}`)
	})
	rejected(t, http.StatusRequestEntityTooLarge, "limit is 200000 values", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, definitionsPath, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"values"},"spec":{"versions":[{"schema":{"openAPIV3Schema":{"allOf":[`+repeated("{}", 1_000_000)+`]}}}]}}`)
	})
	// An object of 100 KB 5000 times.
	w.attacker.create(t, mutatingPoliciesPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":%q},"spec":{"reinvocationPolicy":"Never",
		"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["*"],"resources":["configmaps"]}]},
		"matchConditions":[{"name":"named","expression":"object.metadata.name == 'patched'"}],
		"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"object.data.l.split(',').map(x, JSONPatch{op: 'test', path: '/data', value: object.data})"}}]}}`, w.id))
	w.attacker.create(t, mutatingBindingsPath, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":%[1]q},"spec":{"policyName":%[1]q}}`, w.id))
	patched := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"patched"},"data":{"l":"` + repeated("#", 5000) + `","x":"` + strings.Repeat("x", 100_000) + `"}}`
	w.attacker.untilResponse(t, http.MethodPost, configMaps+"?dryRun=All", patched, http.StatusForbidden, "", "the policy has no effect")
	rejected(t, http.StatusForbidden, "the patch is larger than", func() (int, []byte, error) {
		return w.attacker.call(t.Context(), http.MethodPost, configMaps, patched)
	})
}
