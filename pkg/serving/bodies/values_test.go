package bodies

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// TestValues limits the number of values, and the size of YAML with the values of its aliases.
func TestValues(t *testing.T) {
	t.Parallel()
	url, clients := served(t, NewReader(ledger.Limits{}, largest, nil), bodyTimeout, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	aliases := func(scalar, count int) string {
		return "a: &a " + strings.Repeat("x", scalar) + "\nb: [" + strings.Repeat("*a,", count) + "]\n"
	}
	nested := "a0: &a0 [x]\n"
	for i := range 100 {
		nested += fmt.Sprintf("a%d: &a%d [*a%d,*a%d]\n", i+1, i+1, i, i)
	}
	const yaml = "application/yaml"
	const tooManyValues = "limit is 200000 values"
	for name, c := range map[string]struct {
		contentType, body, message string
		code                       int
	}{
		"within the limit":           {yaml, aliases(1_000, 1_000), "", http.StatusOK},
		"large strings":              {yaml, aliases(1_000, 1_100), "limit is 1048576 with the values of all YAML aliases", http.StatusRequestEntityTooLarge},
		"nested":                     {yaml + ";charset=utf-8", nested, "limit is 1048576 with the values of all YAML aliases", http.StatusRequestEntityTooLarge},
		"apply":                      {"application/apply-patch+yaml", nested, "limit is 1048576 with the values of all YAML aliases", http.StatusRequestEntityTooLarge},
		"merged maps":                {yaml, "a: &a {b: " + strings.Repeat("x", 10_000) + "}\nc: [" + strings.Repeat("{<<: *a},", 110) + "]\n", "limit is 1048576 with the values of all YAML aliases", http.StatusRequestEntityTooLarge},
		"an alias of itself":         {yaml, "a: &a [*a]\n", "", http.StatusOK}, // decoders reject it
		"an unknown anchor":          {yaml, "a: &a b\nc: *d\n", "unknown anchor 'd' referenced", http.StatusBadRequest},
		"applied JSON with them":     {"application/apply-patch+yaml", `{"a":"&a *a"}`, "", http.StatusOK},
		"the characters in a string": {yaml, "a: \"&a *a\"\n", "", http.StatusOK},
		"many values":                {yaml, "a: [" + strings.Repeat("x,", 200_000) + "]", tooManyValues, http.StatusRequestEntityTooLarge},
		"applied JSON, within":       {"application/apply-patch+yaml", `{"a":"` + strings.Repeat("[", 300_000) + `\",","b":[0` + strings.Repeat(",0", 199_990) + `]}`, "", http.StatusOK},
		"applied JSON":               {"application/apply-patch+yaml", `{"b":[0` + strings.Repeat(",0", 200_000) + `]}`, tooManyValues, http.StatusRequestEntityTooLarge},
		"lines":                      {yaml, strings.Repeat("-\n", 200_001), tooManyValues, http.StatusRequestEntityTooLarge},
		"nested lists":               {yaml, strings.Repeat(strings.Repeat("- ", 5000)+"\n", 41), tooManyValues, http.StatusRequestEntityTooLarge},
		"a long text":                {yaml, "a: '" + strings.Repeat("a-b ", 200_000) + "'", "", http.StatusOK},
		"many values in JSON":        {"application/json", `{"b":[0` + strings.Repeat(",0", 200_000) + `]}`, tooManyValues, http.StatusRequestEntityTooLarge},
		"many characters in JSON":    {"application/json", `{"a":"` + strings.Repeat("[", 300_000) + `","b":[0` + strings.Repeat(",0", 199_990) + `]}`, "", http.StatusOK},
		"a patch":                    {"application/merge-patch+json", `{"b":[0` + strings.Repeat(",0", 200_000) + `]}`, tooManyValues, http.StatusRequestEntityTooLarge},
		"JSON":                       {"application/json", aliases(1_000, 1_100), "", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(c.body))
			require.NoError(t, err)
			request.Header.Set("Content-Type", c.contentType)
			response, err := clients["HTTP/2"].Do(request)
			require.NoError(t, err)
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Equal(t, c.code, response.StatusCode, "%.300s", body)
			if c.message == "" {
				require.Equal(t, c.body, string(body))
			} else {
				require.Contains(t, string(body), c.message)
			}
		})
	}
}

// TestLargeValues limits the values of definitions and of protobuf.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	const json, protobuf, cbor = "application/json", "application/vnd.kubernetes.protobuf", "application/cbor"
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
		contentType, resource, body string
		most                        int // 0 if it is accepted
	}{
		"schemas":                     {json, "customresourcedefinitions", schemas(50_000), 100_000},
		"few schemas":                 {json, "customresourcedefinitions", schemas(49_900), 0},
		"schemas of an API":           {json, "apiresourceschemas", schemas(50_000), 100_000},
		"schemas as YAML":             {"application/yaml", "customresourcedefinitions", schemas(50_000), 100_000},
		"elsewhere":                   {json, "widgets", schemas(50_000), 0},
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
		"CBOR":                        {cbor, "customresourcedefinitions", "\xbf" + "\x65allOf" + "\x9f" + strings.Repeat("\xa0", 100_000) + "\xff\xff", 100_000},
		"CBOR with numbers":           {cbor, "widgets", "\x9a\x00\x01\x86\xa0" + strings.Repeat("\x19\xa0\xa0\x1b\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0", 50_000), 0},
		"CBOR with a text":            {cbor, "customresourcedefinitions", "\x7a\x00\x01\x86\xa0" + strings.Repeat("\xa0", 100_000), 0},
		"malformed CBOR":              {cbor, "customresourcedefinitions", strings.Repeat(" ", 40_000) + "\x5b" + strings.Repeat("\xff", 100_000), 0},
		"truncated CBOR":              {cbor, "customresourcedefinitions", strings.Repeat("\x60", 99_999) + strings.Repeat("\x1a\x00", 1), 0},
		"truncated":                   {protobuf, "pods", strings.Repeat("\xff", 1<<20), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checkValues([]byte(c.body), c.contentType, c.resource, 3<<20)
			if c.most == 0 {
				require.Nil(t, err)
				return
			}
			require.ErrorContains(t, err, fmt.Sprintf("limit is %d values", c.most))
			require.EqualValues(t, http.StatusRequestEntityTooLarge, err.Status().Code)
		})
	}
}
