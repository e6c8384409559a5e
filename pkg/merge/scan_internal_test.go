package merge

import (
	"encoding/json"
	"net/url"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
)

func TestFind(t *testing.T) {
	const raw = ` {"a" : {"x":[1,{"b":2},"]}"], "\"m":"\\", "b" :"c\"d" },"metadata":{"name":"n","resourceVersion":"12","n":null},"t":true , "f":-1.5e3}`
	for _, tc := range []struct {
		want string
		path []string
	}{
		{`"c\"d"`, []string{"a", "b"}},
		{`[1,{"b":2},"]}"]`, []string{"a", "x"}},
		{`"12"`, []string{"metadata", "resourceVersion"}},
		{`null`, []string{"metadata", "n"}},
		{`true`, []string{"t"}},
		{`-1.5e3`, []string{"f"}},
		{``, []string{"metadata", "none"}},
		{``, []string{"t", "none"}},
		{``, []string{"none"}},
	} {
		start, end, ok := find([]byte(raw), tc.path...)
		require.Equal(t, tc.want != "", ok, tc.path)
		require.Equal(t, tc.want, raw[start:end], tc.path)
	}
}

func TestVersioned(t *testing.T) {
	v := Vector{}.With(1, 10).With(2, 20)
	own := v.With(1, 7).String()
	for _, tc := range []struct {
		name, raw, want string
		prefix          []string
	}{
		{"object", `{"metadata":{"resourceVersion":"7","labels":{"resourceVersion":"7"}}}`, `{"metadata":{"resourceVersion":"` + own + `","labels":{"resourceVersion":"7"}}}`, nil},
		{"row", `{"cells":["7"],"object":{"metadata":{"resourceVersion":"7"}}}`, `{"cells":["7"],"object":{"metadata":{"resourceVersion":"` + own + `"}}}`, []string{"object"}},
		{"row without an object", `{"cells":["7"],"object":null}`, `{"cells":["7"],"object":null}`, []string{"object"}},
		{"no version", `{"metadata":{"name":"a"}}`, `{"metadata":{"name":"a"}}`, nil},
		{"kind named Table", `{"kind":"Table","metadata":{"resourceVersion":"7"},"rows":[{"object":{"metadata":{"resourceVersion":"a"}}}]}`, `{"kind":"Table","metadata":{"resourceVersion":"` + own + `"},"rows":[{"object":{"metadata":{"resourceVersion":"a"}}}]}`, nil},
	} {
		got, err := versioned([]byte(tc.raw), tc.prefix, 1, v)
		require.NoError(t, err, tc.name)
		require.Equal(t, tc.want, string(got), tc.name)
	}
	_, err := versioned([]byte(`{"metadata":{"resourceVersion":"x"}}`), nil, 1, v)
	require.ErrorIs(t, err, errJSON)
	_, err = versioned([]byte(`{"metadata":{"resourceVersion":7}}`), nil, 1, v)
	require.ErrorIs(t, err, errJSON)
}

// FuzzFind compares find with a decoder, and verifies that it does not panic for invalid JSON.
func FuzzFind(f *testing.F) {
	f.Add([]byte(`{"metadata":{"resourceVersion":"7"}}`))
	f.Add([]byte(`{"a":[{"}":1}],"metadata":{"x":"\"","resourceVersion":"7"}}`))
	f.Add([]byte(`{"metadata`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		start, end, ok := find(raw, "metadata", "resourceVersion")
		tableVersionsIn(raw)
		var want struct {
			Metadata map[string]json.RawMessage `json:"metadata"`
		}
		var members map[string]json.RawMessage
		if !json.Valid(raw) || json.Unmarshal(raw, &members) != nil || json.Unmarshal(members["metadata"], &want.Metadata) != nil {
			return
		}
		if value, there := want.Metadata["resourceVersion"]; there && ok && len(members) == 1 && len(want.Metadata) == 1 {
			require.JSONEq(t, string(value), string(raw[start:end]))
		}
	})
}

func TestAccept(t *testing.T) {
	for header, want := range map[string]string{
		"":                 "application/json",
		"*/*":              "application/json",
		"application/json": "application/json",
		"application/vnd.kubernetes.protobuf,application/json":                                           "application/json",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json":                                  "application/json; as=Table; g=meta.k8s.io; v=v1,application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, */*;as=x;q=.5": "application/json; as=x; q=.5",
		"application/json;stream=watch":                                                                  "application/json",
	} {
		got, ok := Accept(header)
		require.True(t, ok, header)
		require.Equal(t, want, got, header)
	}
	for _, header := range []string{"application/yaml", "application/vnd.kubernetes.protobuf", "nonsense;;"} {
		_, ok := Accept(header)
		require.False(t, ok, header)
	}
}

func TestMapColumns(t *testing.T) {
	row, err := mapColumns(json.RawMessage(`[{"name":"Name"},{"name":"Old"},{"name":"Age"}]`), json.RawMessage(`[{"name":"Name"},{"name":"Age"},{"name":"New"}]`))
	require.NoError(t, err)
	got, err := row(json.RawMessage(`{"cells":["a",1,"5m"],"object":{"x":1}}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"cells":["a","5m","<unknown>"],"object":{"x":1}}`, string(got))
}

func TestAcceptsTables(t *testing.T) {
	const table, metadata = "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	for accept, want := range map[string]bool{
		table:                            true,
		table + ",application/json":      true,
		"application/json," + table:      false,
		metadata + "," + table:           false,
		"application/json;q=.5," + table: true,
		"application/json;as=Table;v=v1;g=furniture.example,application/json": false,
		"application/json;as=Table;v=v2;g=meta.k8s.io,application/json":       false,
		"application/json;as=Table;v=v2;g=meta.k8s.io," + table:               true,
		"application/json": false,
		"":                 false,
	} {
		require.Equal(t, want, AcceptsTables(accept), accept)
	}
}

// TestHiddenRows verifies that the columns of a Table are sent if the first event is hidden, and that objects are removed
// from rows on request.
func TestHiddenRows(t *testing.T) {
	m := &eventWriter{hidden: map[uint32][]byte{}, request: &Request{Tables: true, Hidden: func(cluster logicalcluster.Name) bool { return cluster == "system:admin" }}}
	table := func(columns, cluster string) []byte {
		return []byte(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":` + columns + `,"rows":[{"cells":["x"],"object":{"metadata":{"annotations":{"kcp.io/cluster":"` + cluster + `"}}}}]}`)
	}
	const f = 1
	require.Nil(t, m.visible(f, table(`[{"name":"Name"}]`, "system:admin")))
	require.Nil(t, m.visible(f, table(`null`, "system:admin")))
	require.JSONEq(t, string(table(`[{"name":"Name"}]`, "a")), string(m.visible(f, table(`null`, "a"))))
	require.JSONEq(t, string(table(`null`, "a")), string(m.visible(f, table(`null`, "a"))), "columns must be sent once")

	require.JSONEq(t, string(table(`null`, "a")), string(m.withoutRowObjects(table(`null`, "a"))))
	m.request.Query = url.Values{"includeObject": {"None"}}
	require.Equal(t, "Metadata", m.request.with().Get("includeObject"))
	require.JSONEq(t, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":null,"rows":[{"cells":["x"],"object":null}]}`, string(m.withoutRowObjects(table(`null`, "a"))))
	require.JSONEq(t, `{"cells":[],"object":null}`, string(m.request.withoutObject([]byte(`{"cells":[],"object":{"a":1}}`))))
}
