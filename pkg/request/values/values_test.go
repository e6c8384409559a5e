package values

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheck checks the limits for definitions and protobuf. TestValues in serving/bodies checks JSON and YAML.
func TestCheck(t *testing.T) {
	t.Parallel()
	const jsonType, protobuf = "application/json", "application/vnd.kubernetes.protobuf"
	field := func(number int, value string) string {
		return string(binary.AppendUvarint([]byte{byte(number<<3 | 2)}, uint64(len(value)))) + value
	}
	object := func(raw string) string { return "k8s\x00" + field(1, field(1, "v1")+field(2, "Pod")) + field(2, raw) }
	schemas := func(n int) string { return `{"allOf":[` + strings.Repeat("{},", n) + `{}]}` }
	containers := func(n int) string { return strings.Repeat(field(2, ""), n) }
	entries := func(n int) string { return strings.Repeat(field(2, field(1, "1234")+field(2, "")), n) } // 1234 is a message, too
	nested := func(n int) (all string) {
		heads := make([]string, n)
		size := 0
		for i := range heads {
			heads[i] = string(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(size)))
			size += len(heads[i])
		}
		slices.Reverse(heads)
		return strings.Join(heads, "")
	}
	scalars := "\x08\x01" + "\x09" + strings.Repeat("\n", 8) + "\x0d" + strings.Repeat("\n", 4) // 1, a double and a float
	for name, c := range map[string]struct {
		mediaType, resource, body string
		most                      int // 0 if it is accepted
	}{
		"schemas":                     {jsonType, "customresourcedefinitions", schemas(100_000), 200_000},
		"few schemas":                 {jsonType, "customresourcedefinitions", schemas(99_900), 0},
		"schemas as YAML":             {"application/yaml", "customresourcedefinitions", schemas(100_000), 200_000},
		"containers":                  {protobuf, "pods", object(field(2, containers(100_000))), 100_000},
		"few containers":              {protobuf, "pods", object(field(2, containers(99_900))), 0},
		"after scalars":               {protobuf, "pods", object(field(2, scalars+containers(100_000))), 100_000},
		"in a group":                  {protobuf, "pods", object(field(2, "\x0b"+containers(100_000)+"\x0c")), 100_000},
		"before an error":             {protobuf, "pods", object(field(2, containers(100_000)+"\x0f")), 100_000},
		"after a field number ≥ 2^32": {protobuf, "pods", object(field(2, "\x82\x80\x80\x80\x80\x01\x00"+containers(100_000))), 100_000},
		"after an overlong length":    {protobuf, "pods", object(field(2, "\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02"+containers(100_000))), 100_000},
		"after an overlong varint":    {protobuf, "pods", object(field(2, "\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f"+containers(100_000))), 100_000},
		"nested":                      {protobuf, "customresourcedefinitions", object(nested(10_001)), 100_000},
		"a map":                       {protobuf, "configmaps", object(entries(50_000)), 0},
		"a large map":                 {protobuf, "secrets", object(entries(70_000)), 200_000},
		"a large map elsewhere":       {protobuf, "pods", object(entries(50_000)), 100_000},
		"a text":                      {protobuf, "configmaps", object(field(2, field(1, "key")+field(2, strings.Repeat("\n", 1<<20)))), 0},
		"zeros":                       {protobuf, "pods", object(field(2, strings.Repeat("\x00", 1<<20))), 0},
		"JSON in protobuf":            {protobuf, "customresourcedefinitions", object(field(2, `"[`+strings.Repeat("[],", 50_000))), 100_000},
		"JSON in a text":              {protobuf, "configmaps", object(field(2, `"[`+strings.Repeat("[],", 200_000))), 0},
		"YAML with CR":                {"application/yaml", "widgets", strings.Repeat("-\r", 200_001), 200_000},
		"YAML with NEL":               {"application/yaml", "widgets", strings.Repeat("-\u0085", 200_001), 200_000},
		"YAML in UTF-16":              {"application/yaml", "widgets", "\xff\xfe" + strings.Repeat("-\x00\n\x00", 200_001), 200_000},
		"truncated":                   {protobuf, "pods", strings.Repeat("\xff", 1<<20), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Check([]byte(c.body), c.mediaType, c.resource)
			if c.most == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, fmt.Sprintf("limit is %d values", c.most))
			}
		})
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 1_000_000)
	for body, ok := range map[string]bool{
		`{"` + long + `":[` + strings.Repeat("0,", 50) + `0]}`:                                         true,
		`{"` + long + `":[` + strings.Repeat("0,", 100) + `0]}`:                                        false,
		`{"a":{"` + long + `":[` + strings.Repeat("{},", 100) + `{}]}}`:                                false,
		strings.Repeat(`{"a":[`, 4900) + strings.Repeat("0,", 2000) + "0" + strings.Repeat("]}", 4900): false,
		`{"a":"` + long + `","b":[` + strings.Repeat(`{"c":"`+"\\\""+`"},`, 10_000) + `{}]}`:           true,
	} {
		var document any
		require.NoError(t, json.Unmarshal([]byte(body), &document))
		require.Equal(t, ok, Check([]byte(body), "application/json", "widgets") == nil, "%.100s", body)
		paths, _ := Measure(document, 0)
		require.Equal(t, ok, paths <= MaxPaths, "%.100s", body)
	}
}
