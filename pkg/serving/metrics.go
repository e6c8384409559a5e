package serving

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"
)

// metricsPath is where servers have their metrics.
const metricsPath = "/metrics"

// NewMetrics returns what serves the metrics of a server, together with those of upstream's packages, which are
// registered once for the process.
func NewMetrics(server prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, server}, promhttp.HandlerOpts{ProcessStartTime: legacyregistry.GetProcessStart()})
}

// InstallMetrics serves the metrics of server where s serves those of upstream's packages alone. As upstream,
// DELETE resets the latter.
func InstallMetrics(s *genericapiserver.GenericAPIServer, server prometheus.Gatherer) {
	all, upstream := NewMetrics(server), legacyregistry.HandlerWithReset()
	s.Handler.NonGoRestfulMux.Unregister(metricsPath)
	s.Handler.NonGoRestfulMux.HandleFunc(metricsPath, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			upstream.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
	})
}
