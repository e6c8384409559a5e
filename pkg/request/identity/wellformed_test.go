package identity_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

func TestCheckWellFormed(t *testing.T) {
	good := user.DefaultInfo{Name: "Ann Example", UID: "7", Groups: []string{"a b", "système:masters", ""}, Extra: map[string][]string{"example.com/team": {"Blue team"}}}
	require.NoError(t, identity.CheckWellFormed(&good))
	for _, bad := range []string{" x", "x ", "\tx", "x\t", "x\ny", "x\x00", "x\x7f", "\u00a0x", "x\u0085", " "} {
		for what, u := range map[string]user.DefaultInfo{
			"name": {Name: bad}, "UID": {Name: "a", UID: bad}, "group": {Name: "a", Groups: []string{"b", bad}},
			"key":             {Name: "a", Extra: map[string][]string{bad: {"v"}}},
			"extra attribute": {Name: "a", Extra: map[string][]string{"k": {"v", bad}}},
		} {
			require.ErrorContains(t, identity.CheckWellFormed(&u), what, "%q", bad)
		}
	}
	require.Error(t, identity.CheckWellFormed(&user.DefaultInfo{Name: "a", Extra: map[string][]string{"Authorization.KCP.io/warrant": {"{}"}}}))
}

// FuzzWellFormed holds that what is well formed is the same behind HTTP/1.1.
func FuzzWellFormed(f *testing.F) {
	for _, seed := range []string{"system:masters", " system:masters", "a\tb", "x\r\ny: z", "é", "\u00a0", request.GroupAdmin + "\v"} {
		f.Add(seed)
	}
	got := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("X-Remote-Group") }))
	f.Cleanup(server.Close)
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 10_000 // of what fits into headers
		if !identity.WellFormed(text) || len(text) > limit {
			return
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		require.NoError(t, err)
		r.Header.Set("X-Remote-Group", text)
		response, err := server.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, text, <-got)
	})
}
