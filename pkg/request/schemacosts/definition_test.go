package schemacosts

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// listed is a schema with a list in spec.l, whose items have more fields.
func listed(items string) string {
	return "{type: object, properties: {spec: {type: object, properties: {l: {type: array, items: {type: object, " + items + "}}}}}}"
}

func specOf(t testing.TB, columns int, schema string) *apiextensionsv1.CustomResourceDefinitionSpec {
	t.Helper()
	version := apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{}}}
	require.NoError(t, yaml.UnmarshalStrict([]byte(schema), version.Schema.OpenAPIV3Schema))
	for i := range columns {
		version.AdditionalPrinterColumns = append(version.AdditionalPrinterColumns, apiextensionsv1.CustomResourceColumnDefinition{Name: fmt.Sprint(i), Type: "string", JSONPath: ".spec.x"})
	}
	return &apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version}}
}

// keys is a default with n keys.
func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1,", i)
	}
	return "default: {" + strings.TrimSuffix(b.String(), ",") + "}, x-kubernetes-preserve-unknown-fields: true"
}

func alternatives(n int) string {
	return "anyOf: [" + strings.TrimSuffix(strings.Repeat("{required: [x]},", n), ",") + "]"
}

const (
	plain    = "{type: object, properties: {x: {type: string}}}"
	pattern  = "{type: object, properties: {x: {type: string, pattern: '%s'}}}"
	schemaAt = "spec.versions[0].schema.openAPIV3Schema"
)

// TestCheckSpec verifies that each limit is reported with its field, and that what was there before stays valid.
func TestCheckSpec(t *testing.T) {
	t.Parallel()
	rule := func(expression string) string {
		return "{type: object, x-kubernetes-validations: [{rule: \"" + expression + "\"}]}"
	}
	for name, c := range map[string]struct {
		within, above int // columns
		ok, bad       string
		field, says   string
	}{
		"columns":                     {within: maxColumns, above: maxColumns + 1, ok: plain, bad: plain, field: "spec.versions[0].additionalPrinterColumns", says: "must have at most 32 items"},
		"pattern, counted":            {ok: fmt.Sprintf(pattern, "^.{1000}$"), bad: fmt.Sprintf(pattern, strings.Repeat(".{1000}", 300)), field: schemaAt + ".properties[x].pattern", says: "at most 2500 allowed"},
		"pattern, optional":           {ok: fmt.Sprintf(pattern, "a{0,1000}"), bad: fmt.Sprintf(pattern, strings.Repeat("a{0,1000}", 100)), field: schemaAt + ".properties[x].pattern", says: "at most 2500 allowed"},
		"pattern of a rule":           {ok: rule("self.matches('a{0,1000}')"), bad: rule("self.matches('a{0,1000}a{0,1000}')"), field: schemaAt + ".x-kubernetes-validations[0].rule", says: "at most 2500 allowed"},
		"patterns together":           {ok: patternsOf(20), bad: patternsOf(40), field: "pattern", says: "all regular expressions together are too large"},
		"default of an item":          {ok: listed("properties: {d: {type: object, " + keys(100) + "}}"), bad: listed("properties: {d: {type: object, " + keys(1000) + "}}"), field: schemaAt + ".properties[spec].properties[l].items.properties[d].default", says: "at most 4096 allowed"},
		"defaults in a default":       {ok: nested(10), bad: nested(200), field: schemaAt + ".properties[l].items.properties[d].default", says: "at most 4096 allowed"},
		"alternatives":                {ok: listed(alternatives(maxAlternatives)), bad: listed(alternatives(maxAlternatives + 1)), field: schemaAt + ".properties[spec].properties[l].items", says: "has 101 schemas in allOf, anyOf, oneOf and not, at most 100 allowed"},
		"required":                    {ok: listed("required: [" + strings.Repeat("x,", maxRequired) + "]"), bad: listed("required: [" + strings.Repeat("x,", maxRequired+1) + "]"), field: schemaAt + ".properties[spec].properties[l].items.required", says: "must have at most 1000 items"},
		"alternatives in one another": {ok: listed("allOf: [{" + alternatives(50) + "}]"), bad: listed("allOf: [{" + alternatives(60) + "}, {" + alternatives(60) + "}]"), field: schemaAt + ".properties[spec].properties[l].items", says: "has 122 schemas"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ok, bad := specOf(t, c.within, c.ok), specOf(t, c.above, c.bad)
			require.Empty(t, CheckSpec(ok, nil))
			errs := CheckSpec(bad, nil)
			require.Len(t, errs, 1, "%v", errs)
			require.Contains(t, errs[0].Field, c.field)
			require.Contains(t, errs[0].Error(), c.says)
			require.Len(t, CheckSpec(bad, ok), 1, "it is changed to that")
			require.Empty(t, CheckSpec(bad, bad), "it was so before")
			require.Empty(t, CheckSpec(ok, bad), "it shrinks")
		})
	}
}

// patternsOf is a schema with n patterns of 1,000 instructions.
func patternsOf(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "x%02d: {type: string, pattern: 'a{0,1000}'},", i)
	}
	return "{type: object, properties: {" + strings.TrimSuffix(b.String(), ",") + "}}"
}

// nested is a list whose items have a default of n items, each of which has a default.
func nested(n int) string {
	return "{type: object, properties: {l: {type: array, items: {type: object, properties: {d: {type: array, default: [" +
		strings.TrimSuffix(strings.Repeat("{},", n), ",") + "], items: {type: object, properties: {x: {type: string, default: '12345678901234567890'}}}}}}}}}"
}

// TestColumnPaths verifies that the results of a column cannot multiply.
func TestColumnPaths(t *testing.T) {
	t.Parallel()
	for path, ok := range map[string]bool{
		".spec.x": true, ".status.conditions[?(@.type=='Ready')].status": true, ".spec.l[*].x": true, "..x": true,
		".l" + strings.Repeat("[0,0]", 5): false, strings.Repeat("..l", 3): false,
	} {
		spec := specOf(t, 1, plain)
		spec.Versions[0].AdditionalPrinterColumns[0].JSONPath = path
		require.Equal(t, ok, len(CheckSpec(spec, nil)) == 0, path)
		require.Empty(t, CheckSpec(spec, spec), path)
	}
}
