package definitions

import (
	goruntime "runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/test/customresourcetest"
)

var plainCodec = apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)

// size returns the number of interned specs.
func (i *interner) size() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.byHash)
}

func TestEqualSpecsAreInterned(t *testing.T) {
	codec := internCodec{Codec: plainCodec, interner: newInterner()}
	decode := func(name string, crd *apiextensionsv1.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
		crd.Labels = map[string]string{"name": name}
		apiextensionsserver.Scheme.Default(crd)
		crd.Status.AcceptedNames = crd.Spec.Names
		data, err := runtime.Encode(plainCodec, crd)
		require.NoError(t, err)
		obj, err := runtime.Decode(codec, data)
		require.NoError(t, err)
		out, ok := obj.(*apiextensions.CustomResourceDefinition)
		require.True(t, ok)
		require.Equal(t, name, out.Labels["name"])
		return out
	}
	a, b := decode("a", widgetCRD(nil)), decode("b", widgetCRD(nil))
	require.Same(t, &a.Spec.Versions[0], &b.Spec.Versions[0])
	require.Same(t, a.Spec.Validation, b.Spec.Validation)
	require.NotSame(t, a.Spec.PreserveUnknownFields, b.Spec.PreserveUnknownFields)
	other := decode("c", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"x": {Type: "string"}}))
	require.NotSame(t, a.Spec.Validation, other.Spec.Validation)

	table := NewTable()
	sa, err := codec.interner.schemaOf(table, a)
	require.NoError(t, err)
	sb, err := codec.interner.schemaOf(table, b)
	require.NoError(t, err)
	require.Same(t, sa, sb)
	so, err := codec.interner.schemaOf(table, other)
	require.NoError(t, err)
	require.NotSame(t, sa, so)
	require.Equal(t, 2, codec.interner.size())
	// The other one is unreferenced.
	require.Eventually(t, func() bool {
		goruntime.GC()
		return codec.interner.size() == 1
	}, deadline, tick)
	goruntime.KeepAlive(a)
	require.Equal(t, &widgetCRD(nil).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties, &sa.Spec().Versions[0].Schema.OpenAPIV3Schema.Properties)
}

func TestFindSpec(t *testing.T) {
	for rest, want := range map[string]string{
		`"metadata":{"managedFields":[{"f:spec":{}}]},"spec":{"b":"}\"{"},"status":{"a":{}}}`:  `{"b":"}\"{"}`,
		`"metadata":{},"spec":{"v":[{"a":1,"spec":{"a":1,"status":{}}},2]},"status":{"x":[]}}`: `{"v":[{"a":1,"spec":{"a":1,"status":{}}},2]}`,
		`"metadata":{},"spec":{"a":1}}`:                           "",
		`"metadata":{},"status":{},"spec":{"a":1}}`:               "",
		`"metadata":{},"spec":{"a":1},"status":{},"spec":{"b":1}`: "",
		`"metadata":{},"spec":"text","status":{}}`:                "",
		`"metadata":{},"spec":{"open":`:                           "",
		`"x`:                                                      "",
		``:                                                        "",
	} {
		data := string(storedStart) + rest
		from, to, ok := findSpec([]byte(data))
		require.Equal(t, want != "", ok, data)
		if ok {
			require.Equal(t, want, data[from:to])
		}
	}
	_, _, ok := findSpec([]byte(`{"apiVersion":"v1","kind":"X","metadata":{},"spec":{},"status":{}}`))
	require.False(t, ok, "another kind must not be found")
}

// TestSimilarBytesAreNotInterned: bytes that only resemble a spec are not interned.
func TestSimilarBytesAreNotInterned(t *testing.T) {
	codec := internCodec{Codec: plainCodec, interner: newInterner()}
	// The last status belongs to the spec.
	data := []byte(string(storedStart) + `"metadata":{"name":"a"},"spec":{"group":"g","versions":[{"name":"v1","schema":{"openAPIV3Schema":{"type":"object","properties":{"x":{"type":"string"},"status":{"type":"object"}}}}}]}}`)
	_, _, ok := findSpec(data)
	require.True(t, ok)
	for range 2 {
		obj, err := runtime.Decode(codec, data)
		require.NoError(t, err)
		crd, ok := obj.(*apiextensions.CustomResourceDefinition)
		require.True(t, ok)
		require.Len(t, crd.Spec.Validation.OpenAPIV3Schema.Properties, 2)
		require.Zero(t, codec.interner.size())
	}
}

// FuzzDecoding: decoding a definition returns the same result whether its spec is interned or not.
func FuzzDecoding(f *testing.F) {
	customresourcetest.AddDefinitionSeeds(f)
	f.Fuzz(requireSameDecoding)
}

// requireSameDecoding decodes a document again after its spec was interned.
func requireSameDecoding(t *testing.T, data []byte) {
	t.Helper()
	interning := internCodec{Codec: plainCodec, interner: newInterner()}
	want, wantErr := runtime.Decode(plainCodec, data)
	for range 2 {
		got, err := runtime.Decode(interning, data)
		if wantErr != nil {
			continue // was decoded before
		}
		require.NoError(t, err)
		if _, ok := want.(*apiextensions.CustomResourceDefinition); ok {
			require.Equal(t, want, got)
		}
	}
}
