package openapidoc

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/test/bubble"
)

// definition returns the definition with a number; some have a scale, or are cluster-scoped.
func definition(n int) Definition {
	crd := template(n%2 == 0)
	crd.Spec.Group = fmt.Sprintf("g%d.example.com", n%3)
	kind := fmt.Sprintf("Kind%d", n)
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
		Plural: strings.ToLower(kind) + "s", Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List",
	}
	if n%4 == 3 {
		crd.Spec.Scope = apiextensionsv1.ClusterScoped
	}
	crd.Name = crd.Spec.Names.Plural + "." + crd.Spec.Group
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{
		Type: "object", Description: "A thing.", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
				kind: {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}},
			}},
		},
	}
	return Definition{CRD: crd, Version: "v1", Hash: kind}
}

func definitions(n int) []Definition {
	var all []Definition
	for i := range n {
		all = append(all, definition(i))
	}
	return all
}

// builtInV2 is a document of a built-in API.
func builtInV2(t *testing.T) (own *spec.Swagger, data []byte) {
	t.Helper()
	built, err := builder.BuildOpenAPIV2(template(false), "v1", options(true))
	require.NoError(t, err)
	data, err = json.Marshal(built)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(bytes.ReplaceAll(data, []byte("template"), []byte("builtin")), &own))
	own.Definitions = handler.PruneDefaults(own.Definitions)
	data, err = json.Marshal(own)
	require.NoError(t, err)
	return own, data
}

// serve serves a document once.
func serve(t *testing.T, l *Library, s Spec, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi", http.NoBody)
	r.Header = header
	w := httptest.NewRecorder()
	require.NoError(t, l.Serve(w, r, s))
	return w
}

func read(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal(data, &m), "%s", data)
	return m
}

// TestV2: the document equals upstream's for the same definitions.
func TestV2(t *testing.T) {
	builtIn, data := builtInV2(t)
	l, s := NewLibrary(1<<20), V2()
	s.Hash, s.ETag, s.Definitions = "built-in", "etag", definitions(9)
	s.BuiltIn = func(context.Context) ([]byte, error) { return data, nil }
	var others []*spec.Swagger
	for _, d := range s.Definitions {
		built, err := buildV2(d)
		require.NoError(t, err)
		others = append(others, built)
	}
	merged, err := builder.MergeSpecs(builtIn, others...)
	require.NoError(t, err)
	want, err := json.Marshal(merged)
	require.NoError(t, err)

	response := serve(t, l, s, http.Header{"Accept": {"application/json"}})
	require.Equal(t, read(t, want), read(t, response.Body.Bytes()))
	require.Equal(t, `"etag"`, response.Header().Get("Etag"))

	response = serve(t, l, s, http.Header{"Accept": {V2().format.mediaTypes()[1]}})
	require.Equal(t, V2().format.mediaTypes()[0], response.Header().Get("Content-Type"))
	encoded, err := handler.ToProtoBinary(want)
	require.NoError(t, err)
	sorted := func(data []byte) *openapi_v2.Document {
		var d openapi_v2.Document
		require.NoError(t, proto.Unmarshal(data, &d))
		slices.SortFunc(d.Paths.Path, func(a, b *openapi_v2.NamedPathItem) int { return strings.Compare(a.Name, b.Name) })
		slices.SortFunc(d.Definitions.AdditionalProperties, func(a, b *openapi_v2.NamedSchema) int { return strings.Compare(a.Name, b.Name) })
		slices.SortFunc(d.Parameters.AdditionalProperties, func(a, b *openapi_v2.NamedParameter) int { return strings.Compare(a.Name, b.Name) })
		return &d
	}
	require.True(t, proto.Equal(sorted(encoded), sorted(response.Body.Bytes())))
}

// TestV3 does the same for v3, with and without a built-in document.
func TestV3(t *testing.T) {
	for _, builtIn := range []Definition{{}, definition(100)} {
		l, s := NewLibrary(1<<20), V3()
		s.Hash, s.ETag, s.Definitions = "built-in", "etag", definitions(9)
		var all []*spec3.OpenAPI
		s.BuiltIn = func(context.Context) ([]byte, error) { return nil, nil }
		if builtIn.CRD != nil {
			own, err := buildV3(builtIn)
			require.NoError(t, err)
			document, err := json.Marshal(own)
			require.NoError(t, err)
			s.BuiltIn = func(context.Context) ([]byte, error) { return document, nil }
			own = nil // as parsed, so that upstream's fields have the same order
			require.NoError(t, json.Unmarshal(document, &own))
			all = append(all, own)
		}
		for _, d := range s.Definitions {
			built, err := buildV3(d)
			require.NoError(t, err)
			all = append(all, built)
		}
		merged, err := builder.MergeSpecsV3(all...)
		require.NoError(t, err)
		want, err := json.Marshal(merged)
		require.NoError(t, err)
		response := serve(t, l, s, http.Header{"Accept": {"application/json"}})
		require.Equal(t, read(t, want), read(t, response.Body.Bytes()))

		response = serve(t, l, s, http.Header{"Accept": {V3().format.mediaTypes()[0]}})
		encoded, err := handler3.ToV3ProtoBinary(want)
		require.NoError(t, err)
		sorted := func(data []byte) *openapi_v3.Document {
			var d openapi_v3.Document
			require.NoError(t, proto.Unmarshal(data, &d))
			slices.SortFunc(d.Paths.Path, func(a, b *openapi_v3.NamedPathItem) int { return strings.Compare(a.Name, b.Name) })
			slices.SortFunc(d.Components.Schemas.AdditionalProperties, func(a, b *openapi_v3.NamedSchemaOrReference) int { return strings.Compare(a.Name, b.Name) })
			return &d
		}
		require.True(t, proto.Equal(sorted(encoded), sorted(response.Body.Bytes())))
	}
}

// TestLargeIntegersInCoreGroup: limits in definitions of the core group are exact.
func TestLargeIntegersInCoreGroup(t *testing.T) {
	d := definition(0)
	d.CRD.Spec.Group = ""
	d.CRD.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["name"] = apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: ptr.To[int64](math.MaxInt64)}
	inV2, err := buildV2(d)
	require.NoError(t, err)
	inV3, err := buildV3(d)
	require.NoError(t, err)
	for _, built := range []any{inV2, inV3} {
		data, err := json.Marshal(built)
		require.NoError(t, err)
		require.Contains(t, string(data), `"maxLength":9223372036854775807`)
	}
}

// TestModelsDoNotReplaceSharedTypes: a definition with a model that has the name of a shared type does not replace the type in
// others.
func TestModelsDoNotReplaceSharedTypes(t *testing.T) {
	_, data := builtInV2(t)
	evil := definition(0)
	evil.CRD.Spec.Group = "meta.apis.pkg.apimachinery.k8s.io"
	evil.CRD.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "objectmetas", Singular: "objectmeta", Kind: "ObjectMeta", ListKind: "ListMeta"}
	evil.Hash = "evil"
	l := NewLibrary(1 << 20)
	for _, s := range []Spec{V2(), V3()} {
		s.BuiltIn = func(context.Context) ([]byte, error) { return nil, nil }
		if s.format.name() == "v2" {
			s.BuiltIn = func(context.Context) ([]byte, error) { return data, nil }
		}
		alone := s
		alone.ETag, alone.Definitions = "alone", []Definition{definition(1)}
		want := serve(t, l, alone, nil).Body.String()
		s.ETag, s.Definitions = "both", []Definition{evil, definition(1)}
		both := serve(t, l, s, nil).Body.String()
		require.Contains(t, both, "objectmetas")
		again := NewLibrary(1 << 20)
		serve(t, again, s, nil)
		require.Equal(t, want, serve(t, again, alone, nil).Body.String())
		meta := func(document string) any {
			m := read(t, []byte(document))
			if c, ok := m["components"].(map[string]any); ok {
				m, _ = c["schemas"].(map[string]any)
			} else {
				m, _ = m["definitions"].(map[string]any)
			}
			return m["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
		}
		require.NotNil(t, meta(want))
		require.Equal(t, meta(want), meta(both))
	}
}

func TestServing(t *testing.T) {
	l, s := NewLibrary(1<<20), V3()
	built := 0
	s.BuiltIn = func(context.Context) ([]byte, error) {
		built++
		return nil, nil
	}
	s.ETag, s.Definitions = "one", definitions(2)
	plain := serve(t, l, s, http.Header{"Accept": {"text/html, */*;q=0.1"}})
	require.Equal(t, http.StatusOK, plain.Code)
	require.Equal(t, "application/json", plain.Header().Get("Content-Type"))
	require.Equal(t, []string{"Accept", "Accept-Encoding"}, plain.Header().Values("Vary"))

	packed := serve(t, l, s, http.Header{"Accept-Encoding": {"br, gzip;q=0.5"}})
	require.Equal(t, "gzip", packed.Header().Get("Content-Encoding"))
	unpacked, err := gzip.NewReader(packed.Body)
	require.NoError(t, err)
	data, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	require.Equal(t, plain.Body.Bytes(), data)
	require.Empty(t, serve(t, l, s, http.Header{"Accept-Encoding": {"gzip;q=0.0"}}).Header().Get("Content-Encoding"))
	require.Equal(t, 1, built, "the document must be built once")

	require.Equal(t, http.StatusNotAcceptable, serve(t, l, s, http.Header{"Accept": {"application/xml"}}).Code)
	require.Equal(t, http.StatusNotModified, serve(t, l, s, http.Header{"If-None-Match": {`"other", W/"one"`}}).Code)
	s.ETag = "two"
	s.BuiltIn = func(context.Context) ([]byte, error) { panic("the document must not be built") }
	require.Equal(t, http.StatusNotModified, serve(t, l, s, http.Header{"If-None-Match": {`"two"`}}).Code)
}

// TestFailure: an error is returned, but not cached.
func TestFailure(t *testing.T) {
	l, s := NewLibrary(1<<20), V3()
	wrong := errors.New("wrong")
	s.ETag, s.Definitions = "one", definitions(1)
	s.BuiltIn = func(context.Context) ([]byte, error) { return nil, wrong }
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi", http.NoBody)
	require.ErrorIs(t, l.Serve(httptest.NewRecorder(), r, s), wrong)
	s.BuiltIn = func(context.Context) ([]byte, error) { return nil, nil }
	broken := definition(0)
	broken.CRD.Spec.Versions = nil
	s.Definitions = []Definition{broken}
	require.ErrorContains(t, l.Serve(httptest.NewRecorder(), r, s), "kind0s.g0.example.com")
	s.Definitions = []Definition{{Version: "v1", CRD: &apiextensionsv1.CustomResourceDefinition{}}, definition(1)}
	require.Error(t, l.Serve(httptest.NewRecorder(), r, s))
	s.Definitions = definitions(1)
	require.NoError(t, l.Serve(httptest.NewRecorder(), r, s))
}

type weight int64

func (w weight) size() int64 { return int64(w) }

func TestLibrary(t *testing.T) {
	l, made := NewLibrary(10), map[string]int{}
	get := func(key string, size weight) {
		t.Helper()
		got, err := once(t.Context(), l, key, func(context.Context) (weight, error) {
			made[key]++
			return size, nil
		})
		require.NoError(t, err)
		require.Equal(t, size, got)
	}
	get("a", 4)
	get("b", 4)
	get("a", 4)
	get("c", 4) // b is the least recently read one
	require.EqualValues(t, 8, l.Size())
	get("a", 4)
	get("b", 4)
	require.Equal(t, map[string]int{"a": 1, "b": 2, "c": 1}, made)
	get("large", 11)
	require.Zero(t, l.Size(), "a document above the limit must not be cached")
	get("a", 4)
	l.Expire(time.Now().Add(-time.Hour))
	require.EqualValues(t, 4, l.Size())
	l.Expire(time.Now().Add(time.Hour))
	require.Zero(t, l.Size())
	require.Empty(t, l.items)
}

// TestEntryIsCreatedOnce: concurrent requests wait for one to create the entry, until their contexts end. If that one
// gives up, another one creates it, after the call of the first one has ended.
func TestEntryIsCreatedOnce(t *testing.T) { bubble.Test(t, testEntryIsCreatedOnce) }

func testEntryIsCreatedOnce(t *testing.T) {
	l := NewLibrary(10)
	first, cancel := context.WithCancel(t.Context())
	started, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	var ended atomic.Bool
	all.Go(func() {
		defer ended.Store(true)
		_, err := once(first, l, "a", func(ctx context.Context) (weight, error) {
			close(started)
			<-release
			return 0, ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
	})
	<-started
	second, cancelSecond := context.WithCancel(t.Context())
	cancelSecond()
	_, err := once(second, l, "a", func(context.Context) (weight, error) { panic("another call already builds it") })
	require.ErrorIs(t, err, context.Canceled)
	made := 0
	for range 4 {
		all.Go(func() {
			got, err := once(t.Context(), l, "a", func(context.Context) (weight, error) {
				made++ // by one at a time
				return 3, nil
			})
			require.NoError(t, err)
			require.Equal(t, weight(3), got)
		})
	}
	cancel()
	bubble.Wait()
	require.False(t, ended.Load(), "a worker is used until its call has ended")
	close(release)
	all.Wait()
	require.Equal(t, 1, made)
}

// TestAllocations limits the memory needed to create the parts of a document, because a request for many small
// definitions must not allocate faster than the garbage collector frees.
func TestAllocations(t *testing.T) {
	if bubble.RaceDetector() {
		t.Skip("the race detector randomly drops objects of pools")
	}
	const n, most = 50, 5 << 20 // for each definition
	_, data := builtInV2(t)
	s := V2()
	s.BuiltIn = func(context.Context) ([]byte, error) { return data, nil }
	s.Hash, s.ETag, s.Definitions = "built-in", "document", definitions(n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	serve(t, NewLibrary(64<<20), s, nil)
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/n, uint64(most))
}
