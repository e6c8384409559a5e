package client

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are what an informer counts.
type counts struct {
	events, relists, panics, received atomic.Uint64
	streams                           atomic.Int64
}

// counted is an informer that runs.
type counted interface {
	measure(gauge, counter func(what string, value float64, labels ...string))
}

// metrics collects what the informers of a factory measure. Nil collects nothing.
type metrics struct {
	mu        sync.Mutex
	informer  map[counted]string
	described map[string]*prometheus.Desc
}

var informerMetrics = map[string]string{
	"objects":              "Objects that the informer holds.",
	"streams":              "Streams that the informer follows: two while ranges come to it.",
	"synced":               "1 when the informer has had the complete state once.",
	"stale_seconds":        "For how long the informer has not been connected, or has not had the complete state; 0 if it is up to date.",
	"received_bytes_total": "Bytes of the answers that the informer was sent, uncompressed.",
	"filtered":             "1 for who selects the objects in the informer's ranges: server, client (which receives all of them, and discards others) or unknown.",
	"events_total":         "Objects and events that the informer was sent.",
	"discarded_total":      "Objects and events of these that were not in its ranges.",
	"relists_total":        "How often the informer has read the complete state again.",
	"handler_panics_total": "Panics of handlers.",
}

func newMetrics() *metrics {
	m := &metrics{informer: map[counted]string{}, described: map[string]*prometheus.Desc{}}
	for name, help := range informerMetrics {
		labels := []string{"informer"}
		if name == "filtered" {
			labels = append(labels, "by")
		}
		m.described[name] = prometheus.NewDesc("shardplane_client_informer_"+name, help, labels, nil)
	}
	return m
}

// watch collects what an informer measures until stop is called.
func (m *metrics) watch(i interface {
	counted
	Name() string
}) (stop func()) {
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

// Describe implements prometheus.Collector.
func (m *metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range m.described {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector. Informers of one name are one.
func (m *metrics) Collect(collected chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	type series struct {
		kind       prometheus.ValueType
		what, name string
		label      string
	}
	sums := map[series]float64{}
	for i, name := range m.informer {
		add := func(kind prometheus.ValueType) func(string, float64, ...string) {
			return func(what string, value float64, labels ...string) {
				s := series{kind: kind, what: what, name: name}
				if len(labels) > 0 {
					s.label = labels[0]
				}
				sums[s] += value
			}
		}
		i.measure(add(prometheus.GaugeValue), add(prometheus.CounterValue))
	}
	for s, value := range sums {
		labels := []string{s.name}
		if s.label != "" {
			labels = append(labels, s.label)
		}
		collected <- prometheus.MustNewConstMetric(m.described[s.what], s.kind, value, labels...)
	}
}
