package serving

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// countingResponse counts writes.
type countingResponse struct {
	*httptest.ResponseRecorder
	writes int
}

func (c *countingResponse) Write(p []byte) (int, error) {
	c.writes++
	return c.ResponseRecorder.Write(p)
}

// Lists are gathered, watches are not, and what panics stays incomplete.
func TestListBuffer(t *testing.T) {
	const items, item = 1000, "0123456789"
	serve := func(verb string, end func()) *countingResponse {
		w := &countingResponse{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r = r.WithContext(apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb}))
		WithListBuffer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range items {
				_, err := w.Write([]byte(item))
				assert.NoError(t, err)
			}
			end()
		})).ServeHTTP(w, r)
		return w
	}
	whole := strings.Repeat(item, items)
	list := serve("list", func() {})
	require.Equal(t, whole, list.Body.String())
	require.Equal(t, 1, list.writes)
	watch := serve("watch", func() {})
	require.Equal(t, whole, watch.Body.String())
	require.Equal(t, items, watch.writes)
	require.Panics(t, func() { serve("list", func() { panic(http.ErrAbortHandler) }) })
}
