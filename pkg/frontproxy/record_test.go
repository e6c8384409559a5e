package frontproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// TestCodesOfTenants holds that codes that are none, such as those with which a tenant's webhook
// denies, are one label.
func TestCodesOfTenants(t *testing.T) {
	m := newMetrics(nil)
	const shard = "of-codes"
	code := 0
	handler := withAccounting(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recordFrom(r.Context()).shard = shard
		w.WriteHeader(code)
	}), m, &tracker{}, func(*http.Request, *record, time.Time) {})
	for _, code = range []int{200, 403, 460, 461, 498, statusClientGone, 599} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	}
	counts := map[string]float64{}
	for _, code := range []string{"200", "403", "499", "other"} {
		counts[code] = testutil.ToFloat64(m.requestsTotal.WithLabelValues(shard, code))
	}
	require.Equal(t, 4, testutil.CollectAndCount(m.requestsTotal))
	require.Equal(t, map[string]float64{"200": 1, "403": 1, "499": 1, "other": 4}, counts)
}
