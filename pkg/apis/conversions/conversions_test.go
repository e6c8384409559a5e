package conversions

import (
	"encoding/json"
	"strings"
	"testing"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/apis"
)

// people is a schema with two versions of the same data, and more fields in the second one.
const people = `
group: example.org
names: {plural: people, singular: person, kind: Person, listKind: PersonList}
scope: Namespaced
versions:
- {name: v1, served: true, storage: true, schema: {type: object, properties: {
    spec: {type: object, properties: {
      name: {type: string}, last: {type: string, nullable: true}, tags: {type: array, items: {type: string}}, port: {x-kubernetes-int-or-string: true}, born: {type: string, format: date-time},
      same: {type: string}, any: {type: object, x-kubernetes-preserve-unknown-fields: true}, labels: {type: object, additionalProperties: {type: string}}, kind-of: {type: object, properties: {a-b: {type: integer}}}}}}}}
- {name: v2, served: true, storage: false, schema: {type: object, properties: {
    spec: {type: object, properties: {
      name: {type: object, properties: {first: {type: string}, last: {type: string}}}, tags: {type: object, additionalProperties: {type: integer}}, joined: {type: string}, port: {type: integer}, born: {type: string},
      same: {type: string}, extra: {type: object, properties: {deep: {type: integer}}}, more: {type: string}, anything: {x-kubernetes-preserve-unknown-fields: true}, kind: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}
`

const rules = `
conversions:
- from: v1
  to: v2
  rules:
  - {field: .spec.name, destination: .spec.name.first}
  - {field: spec.last, destination: spec.name.last, transformation: self.upperAscii()}
  - {field: .spec.tags, destination: .spec.joined, transformation: "self.join(',')"}
  - {field: .spec.port, destination: .spec.port, transformation: "type(self) == int ? self : int(self)"}
- from: v2
  to: v1
  rules:
  - {field: .spec.name.first, destination: .spec.name}
  - {field: .spec.name.last, destination: .spec.last}
  - {field: .spec.joined, destination: .spec.tags, transformation: "self.split(',')"}
  preserve: [.spec.extra, spec.more]
`

// definition returns the definition of people, with selectable fields of its second version.
func definition(t testing.TB, selectable ...string) *apiextensionsv1.CustomResourceDefinitionSpec {
	t.Helper()
	var schema apis.APIResourceSchema
	require.NoError(t, yaml.Unmarshal([]byte(people), &schema.Spec))
	for _, path := range selectable {
		v := &schema.Spec.Versions[1]
		v.SelectableFields = append(v.SelectableFields, apiextensionsv1.SelectableField{JSONPath: path})
	}
	crd, errs := apis.Definition(&schema)
	require.Empty(t, errs)
	return &crd.Spec
}

func compile(t testing.TB, conversion string) (*Rules, error) {
	t.Helper()
	var spec apisv1alpha1.APIConversionSpec
	require.NoError(t, yaml.UnmarshalStrict([]byte(conversion), &spec))
	form := apis.ValidateConversion(&apisv1alpha1.APIConversion{ObjectMeta: metav1.ObjectMeta{Name: "v1.people.example.org"}, Spec: spec})
	require.Empty(t, form)
	r, errs := Compile(definition(t), &spec, environment.NewExpressions)
	return r, errs.ToAggregate()
}

func mustCompile(t testing.TB, conversion string) *Rules {
	t.Helper()
	r, err := compile(t, conversion)
	require.NoError(t, err, conversion)
	return r
}

func mustConvert(t testing.TB, r *Rules, u *unstructured.Unstructured, version string) *unstructured.Unstructured {
	t.Helper()
	out, err := r.Convert(u, "example.org/"+version)
	require.NoError(t, err)
	return out
}

func person(t testing.TB, version, rest string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	require.NoError(t, yaml.Unmarshal([]byte(rest), &u.Object))
	text, err := json.Marshal(u.Object)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &u.Object))
	u.SetAPIVersion("example.org/" + version)
	u.SetKind("Person")
	text, err = u.MarshalJSON()
	require.NoError(t, err)
	require.NoError(t, u.UnmarshalJSON(text))
	return u
}

// TestConvert: rules are applied, other fields are kept, and fields that the other version does not have are restored.
func TestConvert(t *testing.T) {
	t.Parallel()
	r := mustCompile(t, rules)
	v1 := person(t, "v1", `{metadata: {name: a}, spec: {name: Ada, last: Lovelace, tags: [x, z], port: "80", same: s}}`)
	before := v1.DeepCopy()
	v2 := mustConvert(t, r, v1, "v2")
	require.Equal(t, before, v1)
	require.Equal(t, "example.org/v2", v2.GetAPIVersion())
	spec := v2.Object["spec"].(map[string]any)
	require.Equal(t, map[string]any{"first": "Ada", "last": "LOVELACE"}, spec["name"])
	require.Equal(t, "x,z", spec["joined"])
	require.Equal(t, int64(80), spec["port"])
	require.Equal(t, "s", spec["same"])
	require.Empty(t, v2.GetAnnotations())

	// A round trip through a client that keeps annotations.
	rich := person(t, "v2", `{metadata: {name: a, annotations: {other: x}}, spec: {name: {first: Ada, last: L}, joined: "x,y", extra: {deep: 7}, more: m}}`)
	poor := mustConvert(t, r, rich, "v1")
	require.JSONEq(t, `{"spec.extra":{"deep":7},"spec.more":"m"}`, poor.GetAnnotations()["preserve.conversion.apis.kcp.io/v2"])
	spec = poor.Object["spec"].(map[string]any)
	require.Equal(t, []any{"Ada", "L", []any{"x", "y"}}, []any{spec["name"], spec["last"], spec["tags"]})
	unstructured.RemoveNestedField(poor.Object, "spec", "extra") // pruned
	unstructured.RemoveNestedField(poor.Object, "spec", "more")
	back := mustConvert(t, r, poor, "v2")
	require.Equal(t, map[string]string{"other": "x"}, back.GetAnnotations())
	spec = back.Object["spec"].(map[string]any)
	require.Equal(t, map[string]any{"deep": int64(7)}, spec["extra"])
	require.Equal(t, "m", spec["more"])

	// A rule removes its destination if there is no source.
	none, err := r.Convert(person(t, "v1", `{metadata: {name: a}, spec: {last: null}}`), "example.org/v2")
	require.ErrorContains(t, err, "spec.conversions[0].rules[1] of the APIConversion", "the schema permits null, but the rule does not")
	require.Nil(t, none)
	none = mustConvert(t, r, person(t, "v1", `{metadata: {name: a}, spec: {name: {first: x}, tags: null}}`), "v2")
	require.NotContains(t, none.Object["spec"], "joined")

	// Versions without rules differ only in their name.
	require.Equal(t, v1.Object["spec"], mustConvert(t, r, v1, "v3").Object["spec"])
	_, err = r.Convert(v1, "a/b/c")
	require.Error(t, err)
}

// TestAnnotation: clients may write the annotation, too, but can only set preserved fields.
func TestAnnotation(t *testing.T) {
	t.Parallel()
	r := mustCompile(t, rules)
	for text, extra := range map[string]any{
		`{"spec.extra":{"deep":1},"metadata.finalizers":["x"],"spec.name":"evil","kind":"Other","":1}`: map[string]any{"deep": int64(1)},
		`{"spec.extra":5}`: int64(5), // like any object that predates its schema
		`[]`:               nil,
		`{`:                nil,
		`null`:             nil,
	} {
		u := person(t, "v1", `{metadata: {name: a, uid: u}, spec: {name: Ada}}`)
		u.SetAnnotations(map[string]string{"preserve.conversion.apis.kcp.io/v2": text})
		out := mustConvert(t, r, u, "v2")
		spec := out.Object["spec"].(map[string]any)
		require.Equal(t, extra, spec["extra"], text)
		require.Equal(t, map[string]any{"first": "Ada"}, spec["name"])
		require.Empty(t, out.GetFinalizers())
		require.Equal(t, "Person", out.GetKind())
	}
	// Outdated annotations are removed.
	u := person(t, "v2", `{metadata: {name: a}, spec: {name: {first: Ada}}}`)
	u.SetAnnotations(map[string]string{"preserve.conversion.apis.kcp.io/v2": `{"spec.extra":{"deep":1}}`})
	require.Empty(t, mustConvert(t, r, u, "v1").GetAnnotations())
	large := person(t, "v2", `{metadata: {name: a}, spec: {more: `+strings.Repeat("x", 300<<10)+`}}`)
	_, err := r.Convert(large, "example.org/v1")
	require.ErrorContains(t, err, "do not fit into an annotation")
}

// TestValues: expressions preserve values of all types.
func TestValues(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ expression, field, spec, want string }{
		{"self", ".spec.name", `{name: a}`, `"a"`},
		{"self", ".spec.kind-of", `{kind-of: {a-b: 3}}`, `{"a-b":3}`},
		{"[self]", ".spec.kind-of", `{kind-of: {a-b: 3}}`, `[{"a-b":3}]`},
		{"self.a__dash__b + 1", ".spec.kind-of", `{kind-of: {a-b: 3}}`, `4`},
		{"self.map(x, {'n': x})", ".spec.tags", `{tags: [a, b]}`, `[{"n":"a"},{"n":"b"}]`},
		{"self + self", ".spec.tags", `{tags: [a]}`, `["a","a"]`},
		{"self", ".spec.tags", `{tags: [a]}`, `["a"]`},
		{"self", ".spec.labels", `{labels: {a.b: c}}`, `{"a.b":"c"}`},
		{"self.all(k, k != '') ? 1.5 : 2.0", ".spec.labels", `{labels: {a.b: c}}`, `1.5`},
		{"bytes(self)", ".spec.name", `{name: a}`, `"YQ=="`},
		{"self", ".spec.born", `{born: "2024-05-06T07:08:09Z"}`, `"2024-05-06T07:08:09Z"`},
		{"duration('90s')", ".spec.name", `{name: a}`, `"1m30s"`},
		{"uint(7)", ".spec.name", `{name: a}`, `7`},
		{"null", ".spec.name", `{name: a}`, ``},
		{"self.x.z", ".spec.any.free", `{any: {free: {x: {z: [1, two]}}}}`, `[1,"two"]`},
		{"optional.none()", ".spec.name", `{name: a}`, ``},
		{"optional.of(self)", ".spec.name", `{name: a}`, `"a"`},
	} {
		rule := `{field: "` + row.field + `", destination: .spec.anything, transformation: "` + row.expression + `"}`
		r := mustCompile(t, `{conversions: [{from: v1, to: v2, rules: [`+rule+`]}]}`)
		out := mustConvert(t, r, person(t, "v1", `{metadata: {name: a}, spec: `+row.spec+`}`), "v2")
		got, ok := out.Object["spec"].(map[string]any)["anything"]
		require.Equal(t, row.want != "", ok, row.expression)
		if ok {
			text, err := json.Marshal(got)
			require.NoError(t, err)
			require.JSONEq(t, row.want, string(text), row.expression)
		}
	}
}

// TestInvalidRules: rules that do not fit the schema are rejected, and the error contains the field.
func TestInvalidRules(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ conversion, field, message string }{
		{`{from: v3, to: v2, rules: []}`, "spec.conversions[0].from", "version of the APIResourceSchema"},
		{`{from: v1, to: v3, rules: []}`, "spec.conversions[0].to", "version of the APIResourceSchema"},
		{`{from: v1, to: v2, rules: [{field: .spec.nope.x, destination: .spec.same}]}`, "spec.conversions[0].rules[0].field", "version v1 has no field .spec.nope"},
		{`{from: v1, to: v2, rules: [{field: .spec.name.x, destination: .spec.same}]}`, "spec.conversions[0].rules[0].field", "version v1 has no field .spec.name.x"},
		{`{from: v1, to: v2, rules: [{field: .spec.name, destination: .status.a}]}`, "spec.conversions[0].rules[0].destination", "version v2 has no field .status"},
		{`{from: v1, to: v2, rules: [], preserve: [.spec.extra]}`, "spec.conversions[0].preserve[0]", "version v1 has no field .spec.extra"},
		{`{from: v1, to: v2, rules: [{field: .spec.name, destination: .spec.same, transformation: self + 1}]}`, "spec.conversions[0].rules[0].transformation", "no matching overload"},
		{`{from: v1, to: v2, rules: [{field: .spec.name, destination: .spec.same, transformation: other}]}`, "spec.conversions[0].rules[0].transformation", "undeclared reference"},
		{`{from: v1, to: v2, rules: [{field: .spec.kind-of, destination: .spec.same, transformation: self.nope}]}`, "spec.conversions[0].rules[0].transformation", "undefined field"},
		{`{from: v1, to: v2, rules: [{field: .spec.name, destination: .spec.anything, transformation: "` + loops(8) + `"}]}`, "spec.conversions[0].rules[0].transformation", "simplify it"},
	} {
		_, err := compile(t, "conversions: ["+row.conversion+"]")
		require.ErrorContains(t, err, row.field, row.conversion)
		require.ErrorContains(t, err, row.message, row.conversion)
	}
}

// TestSelectableFields: rules must not affect selectable fields of their target version.
func TestSelectableFields(t *testing.T) {
	t.Parallel()
	crd := definition(t, ".spec.name.last", ".spec.more")
	for conversion, fields := range map[string][]string{
		rules: {"spec.conversions[0].rules[1].destination", "spec.conversions[1].preserve[1]"},
		`conversions: [{from: v1, to: v2, rules: [{field: .spec.any, destination: .spec.name}]}]`:        {"spec.conversions[0].rules[0].destination"},
		`conversions: [{from: v2, to: v1, rules: [{field: .spec.name.last, destination: .spec.last}]}]`:  {},
		`conversions: [{from: v1, to: v2, rules: [{field: .spec.name, destination: .spec.name.first}]}]`: {},
	} {
		var spec apisv1alpha1.APIConversionSpec
		require.NoError(t, yaml.UnmarshalStrict([]byte(conversion), &spec))
		found := []string{}
		for _, err := range ValidateSelectable(crd, &spec) {
			found = append(found, err.Field)
		}
		require.Equal(t, fields, found, conversion)
	}
}

// loops returns an expression that costs ten to the n.
func loops(n int) string {
	return strings.Repeat("[0,1,2,3,4,5,6,7,8,9].map(x, ", n) + "x" + strings.Repeat(")", n)
}

// TestCosts: rules fail if they are too expensive or their results are too large. All rules of a conversion share one limit.
func TestCosts(t *testing.T) {
	t.Parallel()
	tags := make([]string, 3000)
	for i := range tags {
		tags[i] = "t"
	}
	many, err := json.Marshal(tags)
	require.NoError(t, err)
	rule := func(n, expression string) string {
		return `{field: .spec.tags, destination: .spec.anything.` + n + `, transformation: "` + expression + `"}`
	}
	for _, row := range []struct{ rules, message string }{
		{rule("a", "self.map(x, self.filter(y, y == x).size())"), "cost"},
		{rule("a", "[self]"+strings.Repeat(".map(a, a + a)", 24)+"[0]"), "more than 3145728 bytes"},
		{rule("a", "[[0]]"+strings.Repeat(".map(a, [a, a])", 24)), "more than 3145728 bytes"},
		{rule("a", "self[5000]"), "index out of bounds"},
		{rule("a", "1 / (self.size() - 3000)"), "division by zero"},
		{rule("a", "{1: 2}"), "keys that are not strings"},
		{rule("a", "type(self)"), "objects cannot contain"},
		{rule("a", "18446744073709551615u"), "64-bit"},
		{rule("a", "1.0 / 0.0"), "JSON cannot represent"},
		{rule("a", "self[0].find(['a{0,1000}', 'a{0,1000}'].join())"), "at most 2500 allowed"},
	} {
		r := mustCompile(t, "{conversions: [{from: v1, to: v2, rules: ["+row.rules+"]}]}")
		_, err = r.Convert(person(t, "v1", `{metadata: {name: a}, spec: {tags: `+string(many)+`}}`), "example.org/v2")
		require.ErrorContains(t, err, row.message, row.rules)
	}
	// Each of them fits into the remaining budget, but not all together.
	half := "self.map(x, x).map(x, x).map(x, x)"
	var several []string
	for i := range 40 {
		several = append(several, rule("n"+string(rune('a'+i%26))+string(rune('a'+i/26)), half))
	}
	object := person(t, "v1", `{metadata: {name: a}, spec: {tags: `+string(many)+`}}`)
	mustConvert(t, mustCompile(t, "{conversions: [{from: v1, to: v2, rules: ["+several[0]+"]}]}"), object, "v2")
	r := mustCompile(t, "{conversions: [{from: v1, to: v2, rules: ["+strings.Join(several, ",")+"]}]}")
	_, err = r.Convert(object, "example.org/v2")
	require.ErrorContains(t, err, "the rules cost more than 250000 for one object")
}

// FuzzConvert: invalid objects and rules affect only their own conversion.
func FuzzConvert(f *testing.F) {
	f.Add(rules, `{"metadata":{"name":"a"},"spec":{"name":"Ada","last":null,"tags":["x",1,{}],"port":"x"}}`)
	f.Add(rules, `{"metadata":{"annotations":{"preserve.conversion.apis.kcp.io/v2":"{\"spec.extra\":[]}"}},"spec":[]}`)
	f.Add(rules, `{"metadata":7,"spec":{"name":{"first":{"x":1}}}}`)
	f.Add(`{conversions: [{from: v1, to: v2, rules: [{field: .spec.tags, destination: .spec.anything, transformation: "self.map(x, [x, x])"}]}]}`, `{"spec":{"tags":[[],null]}}`)
	f.Add(`{conversions: [{from: v1, to: v2, rules: [{field: .spec.any.x, destination: .spec.anything.y.z, transformation: "self"}], preserve: [.spec]}]}`, `{"spec":{"any":{"x":1e300},"anything":0}}`)
	f.Add(`{conversions: [{from: v2, to: v1, rules: [{field: .spec, destination: .spec, transformation: "self"}]}]}`, `{"spec":{"name":{"first":null}}}`)
	f.Add(`{conversions: [{from: v1, to: v2, rules: [{field: .metadata.name, destination: .spec.same}, {field: .kind, destination: .spec.more}]}]}`, `{}`)
	crd := definition(f)
	f.Fuzz(func(t *testing.T, conversion, object string) {
		var spec apisv1alpha1.APIConversionSpec
		if yaml.UnmarshalStrict([]byte(conversion), &spec) != nil {
			return
		}
		named := &apisv1alpha1.APIConversion{ObjectMeta: metav1.ObjectMeta{Name: "v1.people.example.org"}, Spec: spec}
		if len(apis.ValidateConversion(named)) > 0 {
			return
		}
		r, errs := Compile(crd, &spec, environment.StoredExpressions)
		if len(errs) > 0 {
			return
		}
		var parsed map[string]any
		if json.Unmarshal([]byte(object), &parsed) != nil || parsed == nil {
			return
		}
		for _, versions := range [][2]string{{"v1", "v2"}, {"v2", "v1"}} {
			parsed["apiVersion"], parsed["kind"] = "example.org/"+versions[0], "Person"
			text, err := json.Marshal(parsed)
			require.NoError(t, err)
			in := &unstructured.Unstructured{}
			if in.UnmarshalJSON(text) != nil {
				return
			}
			before := in.DeepCopy()
			out, err := r.Convert(in, "example.org/"+versions[1])
			require.Equal(t, before, in, "the conversion has changed its input")
			if err != nil {
				continue
			}
			require.Equal(t, "example.org/"+versions[1], out.GetAPIVersion())
			require.Equal(t, "Person", out.GetKind())
			require.Equal(t, in.GetName(), out.GetName())
			require.Equal(t, in.GetUID(), out.GetUID())
			_, err = out.MarshalJSON()
			require.NoError(t, err)
		}
	})
}
