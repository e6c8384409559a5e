package versions

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	structuralpruning "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// shapedSchema contains all features that affect the codec.
const shapedSchema = `
type: object
properties:
  metadata: {type: object, properties: {name: {type: string, maxLength: 10}}}
  status: {type: object, nullable: true, properties: {count: {type: integer}}}
  spec:
    type: object
    properties:
      name: {type: string}
      size: {type: integer, default: 1}
      port: {x-kubernetes-int-or-string: true}
      open: {type: object, x-kubernetes-preserve-unknown-fields: true}
      partly: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {closed: {type: object}}}
      raw: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
      list: {type: array, items: {type: object, properties: {a: {type: string}, b: {type: string, default: x}}}}
      bare: {type: array}
      map: {type: object, additionalProperties: {type: object, properties: {a: {type: string, nullable: true}}}}
      any: {type: object, additionalProperties: true}
      alt: {type: object, properties: {a: {type: string}}, anyOf: [{required: [a]}]}
`

// FuzzShape: the codec does not change objects that skip it. The seeds specify whether they may skip it.
func FuzzShape(f *testing.F) {
	schema := &apiextensionsv1.JSONSchemaProps{}
	require.NoError(f, yaml.Unmarshal([]byte(shapedSchema), schema))
	internal := &apiextensions.JSONSchemaProps{}
	require.NoError(f, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(schema, internal, nil))
	structural, err := structuralschema.NewStructural(internal)
	require.NoError(f, err)
	shape := shapesOf(&apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
		{Name: "v0"}, {Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}},
	}})["v1"]

	left := []string{
		`{}`, `{"status":{}}`, `{"spec":{"size":2}}`, `{"spec":{"size":2,"name":"a","port":"http"}}`, `{"spec":{"size":2,"port":80,"name":7}}`,
		`{"spec":{"size":2,"open":{"a":null,"b":[{"c":{}}]}}}`,
		`{"spec":{"size":2,"list":[],"bare":[1,"a"],"map":{},"alt":{"a":"b"}}}`, `{"spec":{"size":2,"list":[{"b":"y"},{"a":"","b":"z"}],"map":{"x":{"a":"b"}}}}`,
		`{"spec":"none","status":[]}`,
	}
	irregular := []string{
		`{"spec":{}}`, `{"spec":null}`, `{"status":null}`, `{"more":1}`, `{"spec":{"size":null}}`, `{"spec":{"size":2,"more":1}}`, `{"spec":{"size":2,"name":{"a":1}}}`,
		`{"spec":{"size":2,"list":[{"a":"b"}]}}`, `{"spec":{"size":2,"list":[{"b":"y","c":"d"}]}}`, `{"spec":{"size":2,"list":[null]}}`,
		`{"spec":{"size":2,"bare":[{"a":1}]}}`, `{"spec":{"size":2,"map":{"x":{"b":1}}}}`, `{"spec":{"size":2,"map":{"x":null}}}`,
		`{"spec":{"size":2,"partly":{"closed":{"a":1}}}}`, `{"spec":{"size":2,"any":{"a":{"b":1}}}}`, `{"spec":{"size":2,"alt":{"b":1}}}`,
		`{"spec":{"size":2,"raw":{"kind":1}}}`, `{"spec":{"size":2,"raw":{"apiVersion":"v1","kind":"K","metadata":{"labels":{"a":1}}}}}`,
	}
	parse := func(text []byte) (object map[string]any, isLeft, ok bool) {
		if utiljson.Unmarshal(text, &object) != nil || object == nil {
			return nil, false, false
		}
		object["metadata"] = map[string]any{"name": "a", "generation": int64(1), "creationTimestamp": "2026-01-02T03:04:05Z"}
		object["apiVersion"], object["kind"] = "g/v1", "K"
		return object, shape.isNormalObject(object), true
	}
	for i, text := range slices.Concat(left, irregular) {
		_, is, ok := parse([]byte(text))
		require.True(f, ok && is == (i < len(left)), text)
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		object, is, ok := parse(text)
		if !ok || !is {
			return
		}
		before := runtime.DeepCopyJSON(object)
		structuralpruning.Prune(object, structural, true)
		structuraldefaulting.PruneNonNullableNullsWithoutDefaults(object, structural)
		require.Nil(t, objectmeta.Coerce(nil, object, structural, false, true))
		structuraldefaulting.Default(object, structural)
		require.Equal(t, before, object)
	})
}

// TestShapesOf: the codec decides without a schema, and if metadata have defaults.
func TestShapesOf(t *testing.T) {
	t.Parallel()
	spec := &apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {
		Name: "v2", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"metadata": {Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"generateName": {Default: &apiextensionsv1.JSON{Raw: []byte(`"a"`)}},
			}}},
		}},
	}}}
	object := map[string]any{"metadata": map[string]any{"name": "a", "generation": int64(1), "creationTimestamp": "2026-01-02T03:04:05Z"}}
	shapes := shapesOf(spec)
	for _, version := range []string{"v1", "v2", "v3"} {
		require.False(t, shapes[version].isNormalObject(object), version)
	}
}

// TestExpansion: the size of defaults is computed without setting them, even if they multiply.
func TestExpansion(t *testing.T) {
	var schema apiextensionsv1.JSONSchemaProps
	require.NoError(t, yaml.Unmarshal([]byte(`
type: object
properties:
  leaf: {type: object, default: {a: 1, b: 2}, properties: {a: {type: integer}, b: {type: integer}, c: {type: integer, default: 3}}}
  list: {type: array, items: {type: object, default: {}, properties: {x: {type: object, default: {}, properties: {y: {type: array, default: [{}, {}], items: {type: object, properties: {z: {type: integer, default: 1}}}}}}}}}
  more: {type: object, additionalProperties: {type: object, default: {}, properties: {k: {type: integer, default: 1}}}}
  none: {type: object, nullable: true, default: {}, properties: {k: {type: integer, default: 1}}}
`), &schema))
	shape := newShape(&schema)
	require.True(t, shape.hasDefaults())
	of := func(text string) int64 {
		var value any
		require.NoError(t, utiljson.Unmarshal([]byte(text), &value))
		return shape.expansion(value)
	}
	require.Zero(t, of(`{"leaf":{"c":1},"none":{"k":1}}`))
	require.Zero(t, of(`{"leaf":{"c":1},"none":null}`))
	require.Zero(t, of(`"text"`))
	set := `"leaf":{"c":1},"none":null`
	one := of(`{` + set + `,"list":[{}]}`)
	require.Positive(t, one)
	require.Equal(t, 3*one, of(`{`+set+`,"list":[{},{},{}]}`))
	require.Greater(t, of(`{`+set+`,"list":[null]}`), one, "defaults of null items must be counted")
	require.Positive(t, of(`{`+set+`,"more":{"a":{}}}`))
	require.Positive(t, of(`{`+set+`,"more":{"a":null}}`))
	require.Greater(t, of(`{"none":null}`), of(`{"none":null,"leaf":{}}`), "defaults of defaults must be counted")

	// Nested defaults of a few bytes that would be 10^18 values.
	text := `{type: integer, default: 1}`
	for range 9 {
		text = `{type: array, default: [` + strings.Repeat("{},", 100) + `], items: {type: object, properties: {n: ` + text + `}}}`
	}
	var deep apiextensionsv1.JSONSchemaProps
	require.NoError(t, yaml.Unmarshal([]byte(`{type: object, properties: {n: `+text+`}}`), &deep))
	require.Greater(t, newShape(&deep).expansion(map[string]any{}), int64(1e18))
}

// FuzzPlainMetadata: the codec does not change metadata that skip it. The seeds specify whether they may skip
// it.
func FuzzPlainMetadata(f *testing.F) {
	const head = `{"name":"a","uid":"u","resourceVersion":"1","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z"`
	plain := []string{
		head + `}`,
		`{"name":"a","uid":"u","creationTimestamp":"2026-01-02T03:04:05Z"}`, // e.g. of a role
		head + `,"namespace":"n","generateName":"a-","selfLink":"/a","labels":{"a":"b","c":""},"annotations":{"a":""},"finalizers":["x",""]}`,
		head + `,"deletionTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":0}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"","uid":"u","controller":false,"blockOwnerDeletion":true}]}`,
		head + `,"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"k:{\"a\":1}":{}}},"subresource":"status"}]}`,
		head + `,"managedFields":[{}]}`,
	}
	other := []string{
		`{}`, `{"name":"a"}`,
		`{"name":"a","generation":1}`,
		`{"name":"a","generation":0,"creationTimestamp":"2026-01-02T03:04:05Z"}`,
		`{"name":"a","generation":1.5,"creationTimestamp":"2026-01-02T03:04:05Z"}`,
		`{"name":"a","generation":1,"creationTimestamp":null}`,
		`{"name":"a","generation":1,"creationTimestamp":"0001-01-01T00:00:00Z"}`,
		`{"name":"a","generation":1,"creationTimestamp":"2026-01-02T03:04:05+01:00"}`,
		`{"name":"a","generation":1,"creationTimestamp":"2026-01-02T03:04:05.5Z"}`,
		head + `,"clusterName":"c"}`, head + `,"namespace":""}`, head + `,"namespace":7}`,
		head + `,"labels":{}}`, head + `,"labels":{"a":1}}`, head + `,"annotations":null}`, head + `,"annotations":["a"]}`,
		head + `,"finalizers":[]}`, head + `,"finalizers":[1]}`, head + `,"finalizers":"x"}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n"}]}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u","controller":null}]}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u","more":1}]}`,
		head + `,"managedFields":[{"manager":""}]}`, head + `,"managedFields":[{"time":"x"}]}`, head + `,"managedFields":[{"more":{}}]}`,
		head + `,"managedFields":[{"fieldsV1":{"f:a":1.50}}]}`, head + `,"managedFields":[{"fieldsV1":null}]}`, head + `,"managedFields":["m"]}`,
		head + `,"deletionGracePeriodSeconds":1.5}`,
	}
	isPlain := func(text []byte) (metadata map[string]any, plain bool) {
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"K","metadata":`+string(text)+`}`)) != nil {
			return nil, false
		}
		metadata, _ = u.Object["metadata"].(map[string]any)
		return metadata, isPlainMetadata(metadata)
	}
	for i, text := range slices.Concat(plain, other) {
		_, is := isPlain([]byte(text))
		require.Equal(f, i < len(plain), is, text)
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		metadata, is := isPlain(text)
		if !is {
			return
		}
		object := map[string]any{"metadata": runtime.DeepCopyJSON(metadata)}
		read, found, err := objectmeta.GetObjectMeta(object, true)
		require.NoError(t, err)
		require.True(t, found)
		require.NoError(t, objectmeta.SetObjectMeta(object, read))
		require.Equal(t, map[string]any{"metadata": metadata}, object)
	})
}
