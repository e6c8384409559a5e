package client

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

type counts struct {
	events, relists, panics, received atomic.Uint64
	streams                           atomic.Int64
}

type counted interface {
	Name() string
	// measure reports the value of each metric, and the additional label of "filtered".
	measure(report func(metric string, value float64, by ...string))
}

// metrics collects the metrics of the informers of a factory. Nil collects nothing.
type metrics struct {
	mu       sync.Mutex
	informer map[counted]string
}

var informerLabels = []string{"informer"}

var informerMetrics = map[string]*prometheus.Desc{
	"objects": prometheus.NewDesc("shardplane_client_informer_objects", "Objects in the informer.", informerLabels, nil),
	"streams": prometheus.NewDesc("shardplane_client_informer_streams", "Streams of the informer: two while it loads ranges.", informerLabels, nil),
	"synced":  prometheus.NewDesc("shardplane_client_informer_synced", "1 if the informer has received the complete state once.", informerLabels, nil),
	"stale_seconds": prometheus.NewDesc("shardplane_client_informer_stale_seconds",
		"Seconds since the informer was disconnected, or was started without receiving the complete state. 0 if it is up to date.", informerLabels, nil),
	"received_bytes_total": prometheus.NewDesc("shardplane_client_informer_received_bytes_total", "Uncompressed bytes of the responses to the informer.", informerLabels, nil),
	"filtered": prometheus.NewDesc("shardplane_client_informer_filtered",
		"1 for the component that selects the objects in the informer's ranges: server, client (which receives all objects) or unknown.", []string{"informer", "by"}, nil),
	"events_total":         prometheus.NewDesc("shardplane_client_informer_events_total", "Objects and events that the informer received.", informerLabels, nil),
	"discarded_total":      prometheus.NewDesc("shardplane_client_informer_discarded_total", "Received objects and events outside of the informer's ranges.", informerLabels, nil),
	"relists_total":        prometheus.NewDesc("shardplane_client_informer_relists_total", "Number of times that the informer received the complete state again.", informerLabels, nil),
	"handler_panics_total": prometheus.NewDesc("shardplane_client_informer_handler_panics_total", "Panics of handlers.", informerLabels, nil),
}

func (m *metrics) watch(i counted) (stop func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.informer[i] = i.Name()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.informer, i)
	}
}

func (m *metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range informerMetrics {
		descriptions <- d
	}
}

// Informers of one name are summed.
func (m *metrics) Collect(collected chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	type series struct{ metric, name, by string }
	sums := map[series]float64{}
	for i, name := range m.informer {
		i.measure(func(metric string, value float64, by ...string) {
			sums[series{metric, name, strings.Join(by, "")}] += value
		})
	}
	for s, value := range sums {
		kind, labels := prometheus.GaugeValue, []string{s.name}
		if strings.HasSuffix(s.metric, "_total") {
			kind = prometheus.CounterValue
		}
		if s.by != "" {
			labels = append(labels, s.by)
		}
		collected <- prometheus.MustNewConstMetric(informerMetrics[s.metric], kind, value, labels...)
	}
}
