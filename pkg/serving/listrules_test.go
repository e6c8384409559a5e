package serving_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
)

const (
	half      = "shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')"
	canonical = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"

	tableType    = "application/json;as=Table;g=meta.k8s.io;v=v1"
	metadataType = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// reply is the response of a handler.
type reply struct {
	code              int
	contentType, body string
}

func listRules(handler http.HandlerFunc) http.Handler {
	return withRequestInfo(serving.WithListRules(handler, newCodecs()))
}

// TestParsedSelectors checks that the storage receives the parsed selector of a list or watch.
func TestParsedSelectors(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	var parsed []sharding.Selector
	handler := listRules(func(_ http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "limit=1", r.URL.RawQuery)
		parsed = append(parsed, request.ShardSelectorFrom(r.Context()))
	})
	for _, path := range []string{"/api/v1/configmaps?limit=1&shardSelector=", "/api/v1/configmaps:0123?limit=1&shardSelector=", "/api/v1/watch/configmaps?limit=1&shardSelector="} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path+url.QueryEscape(half), http.NoBody)
		handler.ServeHTTP(httptest.NewRecorder(), req)
	}
	require.Len(t, parsed, 3)
	for _, selector := range parsed {
		require.NotNil(t, selector)
		require.Equal(t, canonical, selector.String())
		require.Same(t, parsed[0], selector, "the selector must be parsed once")
	}
}

// sendList sends a request and returns the response, and whether the handler was called.
func sendList(t testing.TB, method, path, selector, accept string, with reply) (code int, body []byte, called bool) {
	t.Helper()
	passedOn := ""
	handler := listRules(func(w http.ResponseWriter, r *http.Request) {
		called = true
		passedOn = r.URL.Query().Get("shardSelector")
		if parsed := request.ShardSelectorFrom(r.Context()); parsed != nil {
			assert.Empty(t, passedOn, "the parsed selector must be removed from the query")
			assert.Equal(t, http.MethodGet, method, "the selector of a deletion must remain in the query")
			passedOn = selector
		}
		w.Header().Set("Content-Type", with.contentType)
		w.WriteHeader(with.code)
		_, _ = io.WriteString(w, with.body)
	})
	if selector != "" {
		path += "?shardSelector=" + url.QueryEscape(selector)
	}
	req := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, req)
	if called {
		require.Equal(t, selector, passedOn, "the handler received another selector")
	}
	return w.Code, w.Body.Bytes(), called
}

var plain = reply{http.StatusOK, "application/json", "{}"}

func TestShardSelectors(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	const configMaps, object = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/a"
	for _, c := range []struct {
		method, path, selector string
		code                   int
	}{
		{http.MethodGet, configMaps, "", 200},
		{http.MethodGet, configMaps, half, 200},
		{http.MethodGet, configMaps, half + " || " + half, 200},
		{http.MethodGet, configMaps, "nonsense", 400},
		{http.MethodGet, configMaps, " ", 400},
		{http.MethodDelete, configMaps, half, 200},
		{http.MethodDelete, configMaps, "nonsense", 400},
		{http.MethodGet, "/api/v1/watch/configmaps", "nonsense", 400},
		// Other verbs ignore the selector.
		{http.MethodGet, object, "nonsense", 200},
		{http.MethodDelete, object, "nonsense", 200},
		{http.MethodPost, configMaps, "nonsense", 200},
		{http.MethodGet, "/version", "nonsense", 200},
	} {
		for range 2 { // also from the cache
			code, body, called := sendList(t, c.method, c.path, c.selector, "application/json", plain)
			require.Equal(t, c.code, code, "%+v: %s", c, body)
			require.Equal(t, c.code == http.StatusOK, called)
			if c.code == http.StatusBadRequest {
				var status metav1.Status
				require.NoError(t, json.Unmarshal(body, &status))
				require.Equal(t, metav1.StatusReasonBadRequest, status.Reason)
				require.Contains(t, status.Message, "invalid shardSelector: ")
			}
		}
	}
}

// TestDeletionByCluster checks that the selector of a DELETECOLLECTION by logical cluster is passed
// to the storage, because upstream's registry does not support it.
func TestDeletionByCluster(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	byCluster := strings.ReplaceAll(canonical, "uid", "cluster")
	called := false
	handler := listRules(func(_ http.ResponseWriter, r *http.Request) {
		called = true
		assert.Empty(t, r.URL.RawQuery)
		assert.Equal(t, byCluster, request.ShardSelectorFrom(r.Context()).String())
	})
	req := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/api/v1/namespaces/default/configmaps?shardSelector="+url.QueryEscape(byCluster), http.NoBody)
	handler.ServeHTTP(httptest.NewRecorder(), req)
	require.True(t, called)
}

func TestShardSelectorsWithTheGateOff(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, false)
	for method, want := range map[string]int{http.MethodGet: 200, http.MethodDelete: 400} {
		code, body, called := sendList(t, method, "/api/v1/namespaces/default/configmaps", half, tableType, plain)
		require.Equal(t, want, code)
		require.Equal(t, want == http.StatusOK, called)
		if code == http.StatusOK {
			require.Equal(t, plain.body, string(body))
		}
	}
}

func TestShardInfoIsAdded(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	const path = "/api/v1/configmaps"
	scheme := runtime.NewScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	proto := protobuf.NewSerializer(scheme, scheme)
	var encoded bytes.Buffer
	require.NoError(t, proto.Encode(&metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "7"},
		Items:    []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}},
	}, &encoded))
	const table = `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"columnDefinitions":null,"rows":[{"cells":["a"],"object":{"b":[1,2]}}]}`

	t.Run("table", func(t *testing.T) {
		_, body, _ := sendList(t, http.MethodGet, path, half, tableType, reply{200, "application/json", table})
		require.JSONEq(t, strings.Replace(table, `"7"`, `"7","shardInfo":{"selector":"`+canonical+`"}`, 1), string(body))
	})
	t.Run("metadata in protobuf", func(t *testing.T) {
		_, body, _ := sendList(t, http.MethodGet, path, half, metadataType, reply{200, "application/vnd.kubernetes.protobuf", encoded.String()})
		obj, _, err := proto.Decode(body, nil, nil)
		require.NoError(t, err)
		list, ok := obj.(*metav1.PartialObjectMetadataList)
		require.True(t, ok)
		require.Equal(t, canonical, list.ShardInfo.Selector)
		require.Equal(t, "a", list.Items[0].Name)
	})
	// Everything else is passed on unchanged.
	for name, with := range map[string]reply{
		"with shardInfo":   {200, "application/json", strings.Replace(table, `"7"`, `"7","shardInfo":{"selector":"mine"}`, 1)},
		"ordinary list":    {200, "application/json", `{"kind":"ConfigMapList","apiVersion":"v1","items":[]}`},
		"an error":         {406, "application/json", `{"kind":"Status","apiVersion":"v1"}`},
		"garbage":          {200, "application/json", "garbage"},
		"another encoding": {200, "text/plain", table},
		"no body":          {204, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, body, _ := sendList(t, http.MethodGet, path, half, tableType, with)
			require.Equal(t, with.code, code)
			require.Equal(t, with.body, string(body))
		})
	}
	t.Run("no selector", func(t *testing.T) {
		_, body, _ := sendList(t, http.MethodGet, path, "", tableType, reply{200, "application/json", table})
		require.JSONEq(t, table, string(body))
	})
}

// FuzzShardSelectors checks that a selector is either applied or rejected as a client error.
func FuzzShardSelectors(f *testing.F) {
	featuregatetesting.SetFeatureGateDuringTest(f, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	for _, seed := range []string{half, strings.ReplaceAll(half, "uid", "cluster"), half + "||" + half, "", " ", "||", "shardRange()", "shardRange(object.metadata.uid,'0x','')", "(((((", "a[0]", "\x00", strings.Repeat("(", 300), "A00000000(A00000\x80\xff", "shardRange(object.metadata.uid,'0x0000000000000000','0x80d8F00000000000000')", "shardRange(object.metad\x00\x01a.uid, '0x8000000000000000', '0x10000000000000000')"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, selector string) {
		code, body, called := sendList(t, http.MethodGet, "/api/v1/configmaps", selector, tableType, reply{200, "application/json", `{}`})
		if called {
			require.Equal(t, http.StatusOK, code)
			return
		}
		require.Equal(t, http.StatusBadRequest, code, "%s", body)
	})
}

func TestSelectorLimits(t *testing.T) {
	handler := listRules(func(http.ResponseWriter, *http.Request) {})
	send := func(method, path, parameter, selector string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path+"?"+url.Values{parameter: {selector}, "watch": {"true"}}.Encode(), http.NoBody))
		return w
	}
	for _, parameter := range []string{"labelSelector", "fieldSelector"} {
		for selector, want := range map[string]string{
			strings.Repeat("!a,", 127) + "!a": "",
			strings.Repeat("!a,", 128) + "!a": parameter + " has 129 requirements, at most 128 allowed",
			"a in (" + strings.Repeat("b,", 1000) + "b),a notin (" + strings.Repeat("b,", 1000) + "b)": "",
			strings.Repeat("),", 128):            parameter + " has 129 requirements",
			"a=" + strings.Repeat("b", 16<<10-2): "",
			"a=" + strings.Repeat("b", 16<<10-1): parameter + " has 16385 bytes, at most 16384 allowed",
		} {
			for method, code := range map[string]int{http.MethodGet: http.StatusOK, http.MethodDelete: http.StatusOK} {
				w := send(method, "/api/v1/configmaps", parameter, selector)
				if want != "" {
					code = http.StatusBadRequest
				}
				require.Equal(t, code, w.Code, "%s: %s", method, w.Body)
				require.Contains(t, w.Body.String(), want)
			}
			w := send(http.MethodGet, "/api/v1/namespaces/default/configmaps/x", parameter, selector)
			require.Equal(t, http.StatusOK, w.Code, "selectors of a get are ignored")
		}
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	w := send(http.MethodGet, "/api/v1/configmaps", "shardSelector", strings.Repeat(half+"||", 127)+half)
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	w = send(http.MethodGet, "/api/v1/configmaps", "shardSelector", strings.Repeat(half+"||", 128)+half)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "shardSelector has 129 requirements, at most 128 allowed")
}
