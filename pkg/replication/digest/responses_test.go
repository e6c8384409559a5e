package digest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzParseResponse(f *testing.F) {
	f.Add(200, `{"dataID":"x","form":1,"keys":{"root|a":"1"}}`, false)
	f.Add(200, `{"dataID":"x","form":1,"buckets":["`+strings.Repeat(`0","`, Buckets-1)+`1"]}`, true)
	f.Add(200, `{"dataID":"x","form":2}`, false)
	f.Add(400, ``, true)
	f.Add(503, `wait`, true)
	f.Fuzz(func(t *testing.T, status int, body string, ofResource bool) {
		response, err := parseResponse(status, []byte(body), ofResource)
		if err != nil {
			return
		}
		require.Equal(t, http.StatusOK, status)
		require.NotEmpty(t, response.DataID)
		require.Equal(t, Form, response.Form)
		if ofResource {
			require.Len(t, response.Buckets, Buckets)
		}
	})
}
