package fieldmanagers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const most = 10

func managed(n int) *corev1.ConfigMap {
	made := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"text": strings.Repeat("x", 400)}}
	for i := range n {
		made.ManagedFields = append(made.ManagedFields, metav1.ManagedFieldsEntry{Manager: fmt.Sprint(i), Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1"})
	}
	return made
}

func entriesOf(n int) string {
	data, _ := json.Marshal(managed(n).ManagedFields) //nolint:errchkjson // it can always be encoded
	return string(data)
}

func TestObjects(t *testing.T) {
	t.Parallel()
	inProtobuf := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	for n, want := range map[int]bool{0: false, most: false, most + 1: true, 10 * most: true} {
		object := managed(n)
		inJSON, err := json.Marshal(object)
		require.NoError(t, err)
		inYAML, err := yaml.JSONToYAML(inJSON)
		require.NoError(t, err)
		var encoded bytes.Buffer
		require.NoError(t, inProtobuf.Encode(object, &encoded))
		for mediaType, body := range map[string][]byte{
			"": inJSON, runtime.ContentTypeJSON: inJSON, runtime.ContentTypeYAML: inYAML, runtime.ContentTypeProtobuf: encoded.Bytes(),
			string(types.MergePatchType): inJSON, string(types.StrategicMergePatchType): inJSON,
		} {
			require.Equal(t, want, Exceed(body, mediaType, most), "%d in %s", n, mediaType)
			require.False(t, Exceed(body[:len(body)-1], mediaType, most+100))
		}
		require.False(t, Exceed(inYAML, string(types.ApplyYAMLPatchType), most), "no patch may contain managedFields")
	}
}

func TestUnusualJSON(t *testing.T) {
	t.Parallel()
	rest := `,"data":{"text":"` + strings.Repeat("x", most*leastEntry) + `"}}`
	for body, want := range map[string]bool{
		`{"metadata":{"managedFields":` + entriesOf(11) + `},"metadata":{"name":"one"}`:                           true, // a Go type merges both
		`{"metadata":{"managedFields":` + entriesOf(6) + `},"metadata":{"managedFields":` + entriesOf(6) + `}`:    true,
		`{"metadata":{"managedFields":` + entriesOf(6) + `,"managedFields":` + entriesOf(6) + `}`:                 true,
		`{"meta\u0064ata":{"managedFi\u0065lds":` + entriesOf(11) + `}`:                                           true,
		`{"metadata":{"managedFields":[1,` + entriesOf(11)[1:] + `}`:                                              true,
		`{"metadata":null,"metadata":[1],"metadata":{"managedFields":null,"managedFields":` + entriesOf(11) + `}`: true,
		`{"metadata":{"managedFields":"` + strings.Repeat("x", 200) + `"}`:                                        false,
		`{"spec":{"managedFields":` + entriesOf(11) + `}`:                                                         false,
	} {
		require.Equal(t, want, Exceed([]byte(body+rest), runtime.ContentTypeJSON, most), body)
	}
}

func TestPatches(t *testing.T) {
	t.Parallel()
	var single []string
	for i := range 11 {
		single = append(single, fmt.Sprintf(`{"op":"add","path":"/metadata/managedFields/-","value":{"manager":"%d"}}`, i))
	}
	for patch, want := range map[string]bool{
		`[{"op":"add","path":"/metadata/managedFields","value":` + entriesOf(11) + `}]`:                true,
		`[{"op":"replace","path":"/metadata/managedFields","value":` + entriesOf(10) + `}]`:            false,
		`[{"op":"replace","path":"x/metadata/managedFields","value":` + entriesOf(11) + `}]`:           true,
		`[{"op":"replace","path":"/metadata","value":{"managedFields":` + entriesOf(11) + `}}]`:        true,
		`[{"op":"add","path":"","value":{"metadata":{"managedFields":` + entriesOf(11) + `}}}]`:        true,
		`[{"op":"add","path":"/x","PATH":"/metadata/managedFields","value":` + entriesOf(11) + `}]`:    false,
		`[{"op":"add","PATH":"/x","path":"/metadata/managedFields","value":` + entriesOf(11) + `}]`:    true,
		`[{"op":"add","path":"/x","path":"/metadata/managedFields","value":` + entriesOf(11) + `}]`:    true,
		`[` + strings.Join(single, ",") + `]`:                                                          true,
		`[` + strings.Join(single[1:], ",") + `]`:                                                      false,
		`[{"op":"copy","from":"/data","path":"/metadata/managedFields"}]`:                              true,
		`[{"op":"move","from":"/spec","path":"/metadata"}]`:                                            true,
		`[{"op":"copy","from":"/spec","path":""}]`:                                                     true,
		`[{"op":"copy","from":"/metadata/labels/a","path":"/metadata/labels/b"}]`:                      false,
		`[{"op":"remove","path":"/metadata/managedFields"},{"op":"add","path":"/data/a","value":"b"}]`: false,
		`{"op":"no list"}`: false,
		`[1]`:              false,
	} {
		require.Equal(t, want, Exceed([]byte(patch), string(types.JSONPatchType), most), patch)
	}
}

// FuzzJSON checks that accepted objects do not exceed the limit in the decoders of the servers.
func FuzzJSON(f *testing.F) {
	f.Add(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"managedFields":`+entriesOf(3)+`}}`, false)
	f.Add(`{"metadata":{"managedFields":[{},{},{}]},"metadata":{}}`, false)
	f.Add(`[{"op":"add","path":"/metadata/managedFields","value":[{},{},{}]},{"op":"copy","from":"/data/x","path":"/metadata/managedFields/-"}]`, true)
	f.Add(`[{"op":"copy","from":"/data","path":"/metadata"}]`, true)
	const few = 2
	typed := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, jsonserializer.SerializerOptions{})
	live := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"managedFields":[{},{},{}]},"x":[{},{},{}]}`)
	f.Fuzz(func(t *testing.T, body string, patch bool) {
		mediaType := runtime.ContentTypeJSON
		if patch {
			mediaType = string(types.JSONPatchType)
		}
		if Exceed([]byte(body+strings.Repeat(" ", few*leastEntry)), mediaType, few) {
			return
		}
		result := []byte(body)
		if patch {
			operations, err := jsonpatch.DecodePatch([]byte(body))
			if err != nil {
				return
			}
			if result, err = operations.Apply(live); err != nil {
				return
			}
		}
		var custom unstructured.Unstructured
		if err := custom.UnmarshalJSON(result); err == nil {
			list, _, _ := unstructured.NestedFieldNoCopy(custom.Object, "metadata", "managedFields")
			entries, _ := list.([]any)
			require.LessOrEqual(t, len(entries), few)
		}
		var object corev1.ConfigMap
		if _, _, err := typed.Decode(result, nil, &object); err == nil {
			require.LessOrEqual(t, len(object.ManagedFields), few)
		}
	})
}

// TestKeepOrder checks that the old order is kept only if nothing but timestamps has changed.
func TestKeepOrder(t *testing.T) {
	t.Parallel()
	entry := func(manager, subresource, fields string, second int64) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Subresource: subresource, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fields), Time: &metav1.Time{Time: time.Unix(second, 0)},
		}
	}
	before := []metav1.ManagedFieldsEntry{entry("a", "", `{"f:x":{}}`, 1), entry("a", "status", `{"f:y":{}}`, 2), entry("b", "", `{"f:x":{}}`, 3)}
	type entries = []metav1.ManagedFieldsEntry
	latest := entry("a", "", `{"f:x":{}}`, 4)
	otherFields := entries{before[1], before[2], entry("a", "", `{"f:z":{}}`, 4)}
	otherManager := entries{before[1], before[2], entry("c", "", `{"f:x":{}}`, 4)}
	oneMore := entries{before[2], before[0], before[1], before[2]}
	for name, c := range map[string]struct{ updated, want entries }{
		"another order":   {entries{before[1], before[2], latest}, entries{latest, before[1], before[2]}},
		"other fields":    {otherFields, slices.Clone(otherFields)},
		"another manager": {otherManager, slices.Clone(otherManager)},
		"one more":        {oneMore, slices.Clone(oneMore)},
		"none":            {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, updated := &corev1.ConfigMap{}, &corev1.ConfigMap{}
			old.ManagedFields, updated.ManagedFields = before, c.updated
			KeepOrder(updated, old)
			require.Equal(t, c.want, updated.ManagedFields)
		})
	}
}
