package frontproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/component-base/metrics/legacyregistry"
)

// TestCodesOfTenants holds that codes that are none, such as those with which a tenant's webhook
// denies, are one label.
func TestCodesOfTenants(t *testing.T) {
	registerMetrics()
	const shard = "of-codes"
	code := 0
	handler := withAccounting(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recordFrom(r.Context()).shard = shard
		w.WriteHeader(code)
	}), &tracker{}, func(*http.Request, *record, time.Time) {})
	for _, code = range []int{200, 403, 460, 461, 498, statusClientGone, 599} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "shardplane_frontproxy_requests_total" {
			continue
		}
		for _, series := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range series.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["shard"] == shard {
				counts[labels["code"]] = series.GetCounter().GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{"200": 1, "403": 1, "499": 1, "other": 4}, counts)
}
