package customresource

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// A strategic merge patch is applied to the current object despite concurrent writes.
func TestConcurrentStrategicPatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		patch     string
		conflicts int
		writes    []string
		code      int
	}{
		"no conflict": {
			`{"spec":{"replicas":2}}`, 0, []string{`{"metadata":{"resourceVersion":"1"},"spec":{"replicas":2}}`}, http.StatusOK,
		},
		"conflicts": {
			`{"spec":{"replicas":2}}`, 2,
			[]string{`{"metadata":{"resourceVersion":"1"},"spec":{"replicas":2}}`, `{"metadata":{"resourceVersion":"2"},"spec":{"replicas":2}}`, `{"metadata":{"resourceVersion":"3"},"spec":{"replicas":2}}`}, http.StatusOK,
		},
		"conflict with resourceVersion": {
			`{"metadata":{"resourceVersion":"0"}}`, 2, []string{`{"metadata":{"resourceVersion":"0"}}`}, http.StatusConflict,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var writes []string
			versions := []string{"1", "2", "3"}
			next := func(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo) {
				if info.Verb == "get" {
					_, _ = io.WriteString(w, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"resourceVersion":"`+versions[len(writes)]+`"},"spec":{"replicas":1}}`)
					return
				}
				body, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Equal(t, "application/merge-patch+json dryRun=All", r.Header.Get("Content-Type")+" "+r.URL.RawQuery)
				writes = append(writes, string(body))
				if len(writes) <= c.conflicts {
					w.WriteHeader(http.StatusConflict)
				}
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPatch, "/?dryRun=All", strings.NewReader(c.patch))
			r.Header.Set("Content-Type", "application/strategic-merge-patch+json")
			w := httptest.NewRecorder()
			patchStrategically(w, r, &genericapirequest.RequestInfo{Verb: "patch"}, next)
			require.Equal(t, c.code, w.Code)
			require.Equal(t, c.writes, writes)
		})
	}
}

func TestDifference(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after, want string }{
		{`{"a":1,"b":{"c":[1,2],"d":"e"}}`, `{"a":1,"b":{"c":[1,2],"d":"e"}}`, `{}`},
		{`{"a":1,"b":{"c":[1,2],"d":"e"}}`, `{"b":{"c":[2],"d":"e"},"f":{}}`, `{"a":null,"b":{"c":[2]},"f":{}}`},
		{`{"a":9007199254740993}`, `{"a":9007199254740992}`, `{"a":9007199254740992}`},
		{`{"a":{"b":1}}`, `{"a":[]}`, `{"a":[]}`},
		{`{"a":null}`, `{"a":null,"b":{"c":1}}`, `{"b":{"c":1}}`},
	} {
		var before, after map[string]any
		require.NoError(t, utiljson.Unmarshal([]byte(c.before), &before))
		require.NoError(t, utiljson.Unmarshal([]byte(c.after), &after))
		got, err := utiljson.Marshal(difference(before, after))
		require.NoError(t, err)
		require.JSONEq(t, c.want, string(got))
	}
}

// Protobuf is for clients that accept nothing else, and for objects that the Go type can represent.
func TestProtobufResponses(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false,
		runtime.ContentTypeProtobuf: true, runtime.ContentTypeProtobuf + ",application/json": false, runtime.ContentTypeProtobuf + ", */*": false,
		runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1": false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept", accept)
		require.Equal(t, want, wantsProtobuf(r), accept)
	}
	_, err := jsonOf(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("k8s\x00\x12\x08"+"1e100001")))
	require.ErrorContains(t, err, "exponents of more than")
	for object, code := range map[string]int{
		`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":1}}`:                   http.StatusCreated,
		`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":"some"}}`:              http.StatusNotAcceptable,
		`{"apiVersion":"v1","kind":"LimitRange","spec":{"limits":[{"max":{"a":"1e100001"}}]}}`: http.StatusNotAcceptable,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept", runtime.ContentTypeProtobuf)
		w := httptest.NewRecorder()
		inProtobuf(w, r, &genericapirequest.RequestInfo{}, func(w http.ResponseWriter, r *http.Request, _ *genericapirequest.RequestInfo) {
			require.Equal(t, runtime.ContentTypeJSON, r.Header.Get("Accept"))
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, object)
		})
		require.Equal(t, code, w.Code, object)
	}
}
