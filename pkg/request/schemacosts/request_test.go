package schemacosts

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

func schemaOf(t testing.TB, schema string) *Schema {
	t.Helper()
	return NewSchemaCosts(&specOf(t, 0, schema).Versions[0])
}

func items(item string, n int) string {
	return `{"spec":{"l":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + `]}}`
}

func objectOf(t testing.TB, text string) (object map[string]any) {
	t.Helper()
	require.NoError(t, utiljson.Unmarshal([]byte(text), &object))
	return object
}

const keyed = "{type: object, properties: {spec: {type: object, properties: {l: {type: array, x-kubernetes-list-type: set, items: {type: string}}, other: {type: array, items: {type: string}}}}}}"

func TestBody(t *testing.T) {
	t.Parallel()
	defaulted := schemaOf(t, listed("properties: {d: {type: object, "+keys(100)+"}}"))
	set := schemaOf(t, keyed)
	matched := schemaOf(t, "{type: object, properties: {spec: {type: object, properties: {s: {type: string, pattern: '(a?){600}c$'}, other: {type: string}, l: {type: array, items: {type: string, allOf: [{pattern: '(a?){600}c$'}]}}}}}}")
	for name, c := range map[string]struct {
		schema    *Schema
		mediaType string
		body      string
		message   string // empty if it is within the limits
	}{
		"few items with defaults":  {schema: defaulted, body: items("{}", 2000)},
		"many items with defaults": {schema: defaulted, body: items("{}", 60_000), message: "the defaults in the schema add more than 3145728 bytes"},
		"items with values":        {schema: defaulted, body: items(`{"d":{}}`, 60_000)},
		"defaults for null":        {schema: schemaOf(t, "{type: object, properties: {spec: {type: object, properties: {l: {type: array, items: {type: object, "+keys(100)+"}}}}}}"), body: items("null", 60_000), message: "the defaults"},
		"defaults in YAML":         {schema: defaulted, mediaType: "application/yaml", body: "spec:\n  l:\n" + strings.Repeat("  - {}\n", 60_000), message: "the defaults"},
		"defaults, applied":        {schema: defaulted, mediaType: string(types.ApplyYAMLPatchType), body: items("{}", 60_000), message: "the defaults"},
		"defaults, merged":         {schema: defaulted, mediaType: string(types.MergePatchType), body: items("{}", 60_000), message: "the defaults"},
		"defaults, patched":        {schema: defaulted, mediaType: string(types.JSONPatchType), body: `[{"op":"add","path":"/spec","value":` + strings.TrimSuffix(strings.TrimPrefix(items("{}", 60_000), `{"spec":`), "}") + `}]`, message: "the defaults"},
		"defaults, item by item":   {schema: defaulted, mediaType: string(types.JSONPatchType), body: "[" + strings.TrimSuffix(strings.Repeat(`{"op":"add","path":"/spec/l/-","value":{}},`, 9000), ",") + "]", message: "the defaults"},
		"few, patched":             {schema: defaulted, mediaType: string(types.JSONPatchType), body: `[{"op":"add","path":"/spec/l/-","value":{}},{"op":"move","path":"/spec/l/0","from":"/spec/l/1"}]`},
		"moved to defaults":        {schema: defaulted, mediaType: string(types.JSONPatchType), body: `[{"op":"move","path":"/spec/l","from":"/spec/other"}]`, message: `must not move the value of another field to "/spec/l"`},
		"copied to defaults":       {schema: defaulted, mediaType: string(types.JSONPatchType), body: `[{"op":"copy","path":"/spec","from":"/other"}]`, message: "must not copy"},
		"entries of a set":         {schema: set, body: items(`"x"`, maxKeyedInRequest)},
		"too many in a set":        {schema: set, body: items(`"x"`, maxKeyedInRequest+1), message: "at most 5000 allowed in one object: distribute them"},
		"entries of a list":        {schema: set, body: strings.Replace(items(`"x"`, 100_000), `"l"`, `"other"`, 1)},
		"owners":                   {schema: set, body: `{"metadata":{"ownerReferences":[` + strings.TrimSuffix(strings.Repeat("{},", 20_000), ",") + `]}}`, message: "those in metadata"},
		"finalizers, patched":      {schema: set, mediaType: string(types.JSONPatchType), body: `[{"op":"add","path":"/metadata/finalizers","value":[` + strings.TrimSuffix(strings.Repeat(`"a/b",`, 20_000), ",") + `]}]`, message: "those in metadata"},
		"one long string":          {schema: matched, body: `{"spec":{"s":"` + strings.Repeat("a", 1_500_000) + `"}}`, message: "instructions of regular expressions"},
		"a string in an item":      {schema: matched, body: items(`"`+strings.Repeat("a", 1_500_000)+`"`, 1), message: "instructions of regular expressions"},
		"another long string":      {schema: matched, body: `{"spec":{"other":"` + strings.Repeat("a", 1_500_000) + `"}}`},
		"garbage":                  {schema: set, body: "{"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.schema.Body([]byte(c.body), c.mediaType)
			if c.message == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.message)
		})
	}
}

// TestStored checks that objects that are older than the defaults of their definition are not expanded.
func TestStored(t *testing.T) {
	t.Parallel()
	object := objectOf(t, items("{}", 60_000))
	require.NoError(t, schemaOf(t, listed("properties: {d: {type: string}}")).Stored(object))
	for _, schema := range []string{
		listed("properties: {d: {type: object, " + keys(100) + "}}"),
		listed("properties: {d: {type: object, " + keys(9) + "}}, " + alternatives(100)), // another limit, which is reached first
	} {
		require.ErrorContains(t, schemaOf(t, schema).Stored(object), "the defaults in the schema add more than")
	}
}

func TestObject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ schema, within, above, message string }{
		"alternatives": {listed(alternatives(50)), items("{}", 5000), items("{}", 20_000), "more than 2000000 comparisons"},
		"properties":   {"{type: object, properties: {spec: {type: object, properties: {l: {type: array, items: " + patternsOf(50) + "}}}}}", items("{}", 30_000), items("{}", 60_000), "more than 2000000 comparisons"},
		"pattern":      {"{type: object, properties: {spec: {type: object, properties: {l: {type: array, items: {type: string, pattern: 'a{0,1000}'}}}}}}", items(`"aaaaaaaaaa"`, 5000), items(`"`+strings.Repeat("a", 10_000)+`"`, 20), "instructions of regular expressions"},
		"set":          {keyed, items(`"x"`, maxKeyed), items(`"x"`, maxKeyed+1), "at most 5000 allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, above := schemaOf(t, c.schema), objectOf(t, c.above)
			require.NoError(t, s.Object(objectOf(t, c.within), nil))
			require.ErrorContains(t, s.Object(above, nil), c.message)
			if err := s.Object(above, above); name == "set" {
				require.NoError(t, err, "an object with as many entries as the old one must be accepted")
			} else {
				require.Error(t, err, "an expensive object must be rejected even if it has not changed")
			}
		})
	}
}

// TestAppliedJSON checks that small objects are not decoded if they are applied as JSON.
func TestAppliedJSON(t *testing.T) {
	s, body := schemaOf(t, keyed), []byte(items(`"x"`, 1000))
	allocations := testing.AllocsPerRun(100, func() { _ = s.Body(body, string(types.ApplyYAMLPatchType)) })
	require.Less(t, allocations, 10.0)
}

// TestErrors checks that large objects with many errors are not validated as a whole.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := schemaOf(t, listed("required: [x], properties: {x: {type: string}}"))
	errors := func(object, old map[string]any, only, except string) int {
		errs, many, err := s.Errors(object, old, only, except)
		require.NoError(t, err)
		if !many {
			return 0
		}
		return len(errs)
	}
	bad, good := objectOf(t, items("{}", 30_000)), objectOf(t, items(`{"x":"a"}`, 2000))
	errs, many, err := s.Errors(bad, nil, "", "")
	require.NoError(t, err)
	require.True(t, many)
	require.Len(t, errs, MaxErrors+1)
	require.Equal(t, "spec.l[0].x: Required value", errs[0].Error())
	require.Equal(t, MaxErrors+1, errors(objectOf(t, items(`{"x":1}`, 2000)), nil, "", ""))
	require.Zero(t, errors(good, nil, "", ""))
	require.Zero(t, errors(objectOf(t, items("{}", MaxErrors)), nil, "", ""), "few errors must be left to upstream's validation")
	require.Zero(t, errors(objectOf(t, items("{}", 500)), objectOf(t, items("{}", 500)), "", ""), "errors that the old object also has must not be reported")
	require.Equal(t, MaxErrors+1, errors(objectOf(t, items("{}", 500)), good, "", ""))
	require.Equal(t, maxRatcheted+1, errors(bad, bad, "", ""), "too many errors must not be compared")
	require.Zero(t, errors(bad, nil, "status", ""))
	require.Zero(t, errors(bad, nil, "", "spec"))
}

// TestErrorsAsUpstream checks that values have as many errors as in upstream's validation of the whole object.
func TestErrorsAsUpstream(t *testing.T) {
	t.Parallel()
	const schema = `{type: object, required: [r], properties: {a: {type: string, pattern: '^x$'}, b: {type: integer, minimum: 3}, c: {type: array, items: {type: boolean}},
		d: {type: object, additionalProperties: {type: number}}, e: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}, f: {type: string, nullable: true}, g: {type: string, enum: [u, v]},
		h: {type: object, x-kubernetes-preserve-unknown-fields: true}, i: {type: string, maxLength: 1, format: date}, j: {type: array, maxItems: 1, items: {type: object, required: [k], properties: {k: {type: string}}}},
		k: {type: string}, l: {x-kubernetes-preserve-unknown-fields: true}, m: {x-kubernetes-int-or-string: true}}}`
	s := schemaOf(t, schema)
	var internal apiextensions.JSONSchemaProps
	require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(s.root.schema, &internal, nil))
	whole, _, err := validation.NewSchemaValidator(&internal)
	require.NoError(t, err)
	values := []string{`null`, `true`, `1`, `1.5`, `"x"`, `"v"`, `""`, `"2026-01-01"`, `{}`, `{"k":"x"}`, `{"k":1}`, `[]`, `[true]`, `["x"]`, `[{}]`, `[{"k":"x"}]`, `[{"k":1},{}]`, `[null]`}
	for name := range s.root.properties {
		for _, value := range values {
			for _, text := range []string{fmt.Sprintf(`{%q:%s}`, name, value), fmt.Sprintf(`{"r":1,%q:%s}`, name, value)} {
				object := objectOf(t, text)
				want := validation.ValidateCustomResource(nil, object, whole)
				errs, err := s.errors(object, "", "", MaxErrors)
				require.NoError(t, err)
				require.Len(t, errs, len(want), "%s: got %v, want %v", text, errs, want) // paths may differ
			}
		}
	}
}

func TestLarge(t *testing.T) {
	t.Parallel()
	plain := NewLazy(&specOf(t, 0, listed("required: [x]")).Versions[0])
	require.False(t, plain.IsLarge(objectOf(t, items("{}", 100))))
	require.True(t, plain.IsLarge(objectOf(t, items("{}", 1000))))
	var names []string
	for i := range maxRequired {
		names = append(names, fmt.Sprint("k", i))
	}
	text, err := json.Marshal(names)
	require.NoError(t, err)
	require.True(t, NewLazy(&specOf(t, 0, listed("required: "+string(text))).Versions[0]).IsLarge(objectOf(t, items("{}", 100))), "each item can have 1,000 errors")
}

// TestLong checks that objects are checked if their strings are long for the patterns of the
// schema, or if a pattern must not be compiled.
func TestLong(t *testing.T) {
	t.Parallel()
	text := func(n int) map[string]any { return objectOf(t, `{"x":"`+strings.Repeat("a", n)+`"}`) }
	for schema, least := range map[string]int{
		plain:                               1 << 40,
		fmt.Sprintf(pattern, "^a{0,1000}$"): 100_000,
		"{type: object, properties: {x: {type: string, allOf: [{pattern: 'a{0,1000}'}, {not: {pattern: 'a{0,1000}'}}]}}}": 50_000,
		fmt.Sprintf(pattern, strings.Repeat("a{0,1000}", 100)):                                                            0, // older than the limit
	} {
		lazy := NewLazy(&specOf(t, 0, schema).Versions[0])
		for _, n := range []int{0, 10, 30_000, 70_000, 1_000_000} {
			require.Equal(t, n >= least, lazy.IsLong(text(n)), "%d: %s", n, schema)
			if n >= least {
				require.ErrorContains(t, lazy.Schema().Object(text(n), nil), "instructions of regular expressions", "%d: %s", n, schema)
			}
		}
		require.False(t, lazy.IsLong(objectOf(t, `{"y":1}`)), "no pattern is used")
	}
}

// listed is a schema with a list in spec.l, with items that have additional fields.
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

// TestCheckSpec checks that errors contain the field, and that existing fields remain valid.
func TestCheckSpec(t *testing.T) {
	t.Parallel()
	rule := func(expression string) string {
		return "{type: object, x-kubernetes-validations: [{rule: \"" + expression + "\"}]}"
	}
	for name, c := range map[string]struct {
		within, above  int // columns
		ok, bad        string
		field, message string
	}{
		"columns":               {within: maxColumns, above: maxColumns + 1, ok: plain, bad: plain, field: "spec.versions[0].additionalPrinterColumns", message: "must have at most 32 items"},
		"pattern, counted":      {ok: fmt.Sprintf(pattern, "^.{1000}$"), bad: fmt.Sprintf(pattern, strings.Repeat(".{1000}", 300)), field: schemaAt + ".properties[x].pattern", message: "at most 2500 allowed"},
		"pattern, optional":     {ok: fmt.Sprintf(pattern, "a{0,1000}"), bad: fmt.Sprintf(pattern, strings.Repeat("a{0,1000}", 100)), field: schemaAt + ".properties[x].pattern", message: "at most 2500 allowed"},
		"pattern of a rule":     {ok: rule("self.matches('a{0,1000}')"), bad: rule("self.matches('a{0,1000}a{0,1000}')"), field: schemaAt + ".x-kubernetes-validations[0].rule", message: "at most 2500 allowed"},
		"patterns together":     {ok: patternsOf(20), bad: patternsOf(40), field: "pattern", message: "all regular expressions together are too large"},
		"default of an item":    {ok: listed("properties: {d: {type: object, " + keys(100) + "}}"), bad: listed("properties: {d: {type: object, " + keys(1000) + "}}"), field: schemaAt + ".properties[spec].properties[l].items.properties[d].default", message: "at most 4096 allowed"},
		"defaults in a default": {ok: nested(10), bad: nested(200), field: schemaAt + ".properties[l].items.properties[d].default", message: "at most 4096 allowed"},
		"alternatives":          {ok: listed(alternatives(maxAlternatives)), bad: listed(alternatives(maxAlternatives + 1)), field: schemaAt + ".properties[spec].properties[l].items", message: "has 101 schemas in allOf, anyOf, oneOf and not, at most 100 allowed"},
		"required":              {ok: listed("required: [" + strings.Repeat("x,", maxRequired) + "]"), bad: listed("required: [" + strings.Repeat("x,", maxRequired+1) + "]"), field: schemaAt + ".properties[spec].properties[l].items.required", message: "must have at most 1000 items"},
		"nested alternatives":   {ok: listed("allOf: [{" + alternatives(50) + "}]"), bad: listed("allOf: [{" + alternatives(60) + "}, {" + alternatives(60) + "}]"), field: schemaAt + ".properties[spec].properties[l].items", message: "has 122 schemas"},
		"paths":                 {ok: deep(1000, ""), bad: deep(1500, ""), field: schemaAt, message: "the paths of all schemas have"},
		"paths of keys":         {ok: listOf("x-kubernetes-list-map-keys: [x]"), bad: listOf("x-kubernetes-list-map-keys: [" + strings.Repeat("x,", 100_000) + "]"), field: schemaAt, message: "the paths of all schemas have"},
		"rules":                 {ok: listOf(rules(1000, "{rule: 'true'}")), bad: listOf(rules(8000, "{rule: 'true'}")), field: schemaAt, message: "the compilation of x-kubernetes-validations costs"},
		"long rules":            {ok: listOf(rules(9, "{message: m, rule: "+strings.Repeat("a", 20_000)+"}")), bad: listOf(rules(9, "{message: m, rule: "+strings.Repeat("a", 30_000)+"}")), field: schemaAt, message: "the compilation of x-kubernetes-validations costs"},
		"a rule as message":     {ok: rule(strings.Repeat("a", maxUnexplained)), bad: rule(strings.Repeat("a", maxUnexplained+1)), field: schemaAt + ".x-kubernetes-validations[0].message", message: "is required for a rule of more than 1024 bytes"},
		"matched defaults":      {ok: matching(10_000, "default: {}"), bad: matching(15_000, "default: {}"), field: schemaAt + ".properties[p].properties[x].default", message: "with this default, the validation of all defaults runs more than 50000000 instructions"},
		"fieldPaths":            {ok: deep(100, rules(1, "{rule: 'true'}")), bad: deep(100, rules(50, "{rule: 'true', fieldPath: .x}")), field: schemaAt, message: "the compilation of x-kubernetes-validations costs"},
		"rules in defaults":     {ok: deep(40, rules(5, "{rule: 'true'}")), bad: deep(40, "default: {}, "+rules(5, "{rule: 'true'}")), field: schemaAt, message: "the compilation of x-kubernetes-validations costs"},
		"names without rules":   {ok: deep(100, ""), bad: strings.ReplaceAll(deep(900, ""), "x:", "'0':"), field: schemaAt, message: "the compilation of x-kubernetes-validations costs"},
		"values in defaults":    {ok: listOf("default: [" + strings.Repeat("1,", 5000) + "1]"), bad: listOf("default: [" + strings.Repeat("1,", 5001) + "1]"), field: schemaAt, message: "the defaults have 5001 commas, at most 5000 allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ok, bad := specOf(t, c.within, c.ok), specOf(t, c.above, c.bad)
			require.Empty(t, CheckSpec(ok, nil))
			errs := CheckSpec(bad, nil)
			require.Len(t, errs, 1, "%v", errs)
			require.Contains(t, errs[0].Field, c.field)
			require.Contains(t, errs[0].Error(), c.message)
			require.Len(t, CheckSpec(bad, ok), 1, "an update must not exceed the limit")
			require.Empty(t, CheckSpec(bad, bad), "an unchanged field must remain valid")
			require.Empty(t, CheckSpec(ok, bad), "an update within the limit must be valid")
		})
	}
}

func deep(n int, fields string) string {
	return strings.Repeat("{type: object, "+fields+" properties: {x: ", n) + "{type: string}" + strings.Repeat("}}", n)
}

// matching is an object p with a default string of n bytes, which is matched in the validation of both defaults.
func matching(n int, fields string) string {
	return "{type: object, properties: {p: {type: object, " + fields + ", properties: {x: {type: string, pattern: 'a{0,1000}', default: " + strings.Repeat("a", n) + "}}}}}"
}

func listOf(fields string) string {
	return "{type: object, properties: {x: {type: array, " + fields + "}}}"
}

func rules(n int, rule string) string {
	return "x-kubernetes-validations: [" + strings.Repeat(rule+",", n) + "],"
}

func patternsOf(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "x%02d: {type: string, pattern: 'a{0,1000}'},", i)
	}
	return "{type: object, properties: {" + strings.TrimSuffix(b.String(), ",") + "}}"
}

// nested is a list with a default of n items, each of which has a default.
func nested(n int) string {
	return "{type: object, properties: {l: {type: array, items: {type: object, properties: {d: {type: array, default: [" +
		strings.TrimSuffix(strings.Repeat("{},", n), ",") + "], items: {type: object, properties: {x: {type: string, default: '12345678901234567890'}}}}}}}}}"
}

func TestBundle(t *testing.T) {
	large, err := os.ReadFile("../rsakeys/testdata/large.pem")
	require.NoError(t, err)
	bad := &apiextensionsv1.CustomResourceDefinitionSpec{Conversion: &apiextensionsv1.CustomResourceConversion{Webhook: &apiextensionsv1.WebhookConversion{ClientConfig: &apiextensionsv1.WebhookClientConfig{CABundle: large}}}}
	require.ErrorContains(t, CheckSpec(bad, nil).ToAggregate(), "caBundle: Invalid value: a key has 8676 bits")
	require.Empty(t, CheckSpec(bad, bad))
}

// TestColumnPaths checks that the results of a column cannot multiply.
func TestColumnPaths(t *testing.T) {
	t.Parallel()
	for path, ok := range map[string]bool{
		".spec.x": true, ".status.conditions[?(@.type=='Ready')].status": true, ".spec.l[*].x": true, ".spec..x": false,
		".l" + strings.Repeat("[0,0]", 4): true, ".l" + strings.Repeat("[0,0]", 5): false,
	} {
		spec := specOf(t, 1, plain)
		spec.Versions[0].AdditionalPrinterColumns[0].JSONPath = path
		require.Equal(t, ok, len(CheckSpec(spec, nil)) == 0, path)
		require.Empty(t, CheckSpec(spec, spec), path)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	within, above := specOf(t, 1, plain), specOf(t, 1, plain)
	within.Versions = slices.Repeat(within.Versions, maxVersions)
	above.Versions = slices.Repeat(above.Versions, maxVersions+1)
	require.Empty(t, CheckSpec(within, nil))
	require.ErrorContains(t, CheckSpec(above, nil).ToAggregate(), "spec.versions: Too many: 101: must have at most 100 items")
	require.Len(t, CheckSpec(above, within), 1)
	require.Empty(t, CheckSpec(above, above))
	within, above = specOf(t, 1, plain), specOf(t, 1, plain)
	above.Names.ShortNames, above.Names.Categories = make([]string, maxNames+1), make([]string, maxNames+1)
	require.Len(t, CheckSpec(above, within), 2)
	require.Empty(t, CheckSpec(above, above))
}
