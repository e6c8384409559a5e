package merge_test

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/merge"
)

// TestKindsNamedTable verifies that tenants' objects of any kind are not treated as Tables.
func TestKindsNamedTable(t *testing.T) {
	for _, tc := range []struct{ name, apiVersion, accept string }{
		{"own group", "furniture.example/v1", "application/json"},
		{"own group, Tables accepted", "furniture.example/v1", "application/json;as=Table;v=v1;g=meta.k8s.io"},
		{"group of Tables", "meta.k8s.io/v1", "application/json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rows := []any{map[string]any{"object": map[string]any{"metadata": map[string]any{"resourceVersion": "text"}}}}
			columns := []any{map[string]any{"name": "oak"}}
			f := newFake(t, "a", "1", "2")
			f.members = map[string]any{"apiVersion": tc.apiVersion, "kind": "Table", "rows": rows, "columnDefinitions": columns}
			w := newWorld(t, f)
			check := func(obj map[string]any) {
				t.Helper()
				require.Equal(t, rows, obj["rows"])
				require.Equal(t, columns, obj["columnDefinitions"])
				require.True(t, merge.IsVersion((&unstructured.Unstructured{Object: obj}).GetResourceVersion()))
			}

			r := w.request()
			r.Tables = merge.AcceptsTables(tc.accept)
			out := httptest.NewRecorder()
			require.NoError(t, r.List(t.Context(), out))
			var list struct{ Items []map[string]any }
			require.NoError(t, json.Unmarshal(out.Body.Bytes(), &list))
			require.Len(t, list.Items, 2)

			r = w.request("sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan")
			r.Tables = merge.AcceptsTables(tc.accept)
			s := w.watched(r)
			for _, item := range list.Items {
				check(item)
				var event struct{ Object map[string]any }
				require.NoError(t, s.decoder.Decode(&event))
				check(event.Object)
			}
		})
	}
}
