package shard

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/finisher"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/fairness"
	"github.com/shardplane/shardplane/test/chaintest"
)

// TestChain compares the chain with docs/chains.md.
func TestChain(t *testing.T) {
	chaintest.Documented(t, "shard", emptyServers(&base{metrics: prometheus.NewRegistry()}).chain(&genericapiserver.Config{}))
}

// emptyServers returns servers without components. Their chain contains all filters.
func emptyServers(b *base) *objectServers {
	i := &installation{storedData: &storedData{base: b}, local: &local{}}
	return &objectServers{requestAccess: &requestAccess{boundResources: &boundResources{installation: i}}}
}

// TestSeats expects that a write which computes after its client has disconnected keeps its seat until it ends. The
// order of the filters decides it.
func TestSeats(t *testing.T) {
	metrics := prometheus.NewRegistry()
	s := emptyServers(&base{metrics: metrics})
	s.options.Fairness = fairness.Options{Enabled: true, Limits: fairness.Limits{Seats: 1, FlowSeats: 1, AloneSeats: 1}}
	c := genericapiserver.NewConfig(registry.Codecs)
	c.LongRunningFunc = func(*http.Request, *apirequest.RequestInfo) bool { return false }
	filters := slices.DeleteFunc(s.chain(c), func(f serving.Filter) bool {
		return !slices.Contains([]string{"fairness", "requests in flight", "watched requests"}, f.Name)
	})
	require.Len(t, filters, 3)
	started, release := make(chan struct{}, 1), make(chan struct{})
	handler := filters.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = finisher.FinishRequest(r.Context(), func() (runtime.Object, error) {
			select {
			case started <- struct{}{}:
				<-release
			default: // the next ones end at once
			}
			return nil, nil
		})
	}))
	send := func(ctx context.Context, name string) int {
		ctx = apirequest.WithUser(request.WithClusterName(ctx, "a"), &user.DefaultInfo{Name: name})
		ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{Verb: "create", IsResourceRequest: true, Resource: "configmaps"})
		ctx = apirequest.WithReceivedTimestamp(ctx, time.Now())
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody))
		return w.Code
	}
	ctx, disconnect := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); send(ctx, "mallory") }()
	require.Eventually(t, func() bool { return len(started) == 1 }, time.Minute, time.Millisecond)
	disconnect()
	for overdue(t, metrics) == 0 {
		require.Equal(t, http.StatusTooManyRequests, send(t.Context(), "alice"), "the write must keep its seat")
	}
	close(release)
	<-ended
	require.Equal(t, http.StatusOK, send(t.Context(), "alice"))
}

// overdue returns how many requests compute after their end.
func overdue(t *testing.T, metrics prometheus.Gatherer) float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "shardplane_watchdog_overdue_requests" {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}
