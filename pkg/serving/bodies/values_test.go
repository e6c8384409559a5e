package bodies

import (
	"fmt"
	"io"
	"net/http"
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
		"an alias of itself":         {yaml, "a: &a [*a]\n", "for the paths of all values", http.StatusRequestEntityTooLarge},
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
		"long paths in YAML":         {yaml, "? " + strings.Repeat("k", 100_000) + "\n: [" + strings.Repeat("0, ", 1000) + "]\n", "limit is 67108864 bytes for the paths", http.StatusRequestEntityTooLarge},
		"a malformed type":           {"application/apply-patch+yaml;a=1;a=2", nested, "the Content-Type header is malformed: mime: duplicate parameter name", http.StatusUnsupportedMediaType},
		"a malformed parameter":      {"application/json-patch+json; x", "[]", "the Content-Type header is malformed", http.StatusUnsupportedMediaType},
		"CBOR":                       {"application/cbor", "\xa0", "bodies in CBOR are not supported", http.StatusUnsupportedMediaType},
		"CBOR to apply":              {"application/apply-patch+cbor", "\xa0", "bodies in CBOR are not supported", http.StatusUnsupportedMediaType},
		"no type":                    {"", "{}", "", http.StatusOK},
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

func TestQuantities(t *testing.T) {
	t.Parallel()
	for body, mediaType := range map[string]string{
		`{"a":"1e100001","a":"1"}`: "application/json", `[1E60000,"1e60000"]`: "", `[" 1\u0065-100001 "]`: "application/json-patch+json", `"` + strings.Repeat("1", 101) + `"`: "",
		"\"1\\x65\\\n  100001\"": "application/apply-patch+yaml", "k8s\x00\x0a\x08" + "1e100001": "application/vnd.kubernetes.protobuf",
	} {
		require.ErrorContains(t, checkValues([]byte(body), mediaType, "resourcequotas", largest), "exponents of more than 100000 together", body)
		require.ErrorContains(t, checkValues([]byte(body), mediaType, "limitranges", largest), "exponents of more than 100000 together", body)
		require.Nil(t, checkValues([]byte(body), mediaType, "configmaps", largest), body)
	}
	require.Nil(t, checkValues([]byte(`{"uid":"9e123456-0000","hard":{"pods":"1e999"},"l":["12e4567"]}`), "application/json", "resourcequotas", largest))
}
