// Package instruments registers metrics per server, because tests run several servers in one process.
package instruments

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers a collector and returns it, or the registered one with the same descriptors, because
// controllers are created again whenever their replica becomes the leader. A nil registerer registers nothing.
func Register[C prometheus.Collector](registerer prometheus.Registerer, collector C) C {
	if registerer == nil {
		return collector
	}
	err := registerer.Register(collector)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if registered, ok := already.ExistingCollector.(C); ok {
			return registered
		}
	}
	if err != nil {
		panic(err) // two packages have a metric with the same name
	}
	return collector
}

// Stability is the stability level of the metrics of this package, as in Kubernetes. It is the prefix of their help.
const Stability = "ALPHA"

// docs/reference/metrics.md is generated from these calls: name, help and labels must be string literals.

// NewCounter registers a counter.
func NewCounter(registerer prometheus.Registerer, name, help string) prometheus.Counter {
	return Register(registerer, prometheus.NewCounter(prometheus.CounterOpts(opts(name, help))))
}

// NewCounterVec registers a counter with labels.
func NewCounterVec(registerer prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels))
}

// NewGauge registers a gauge.
func NewGauge(registerer prometheus.Registerer, name, help string) prometheus.Gauge {
	return Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts(opts(name, help))))
}

// NewGaugeVec registers a gauge with labels.
func NewGaugeVec(registerer prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts(opts(name, help)), labels))
}

// NewHistogramVec registers a histogram with labels.
func NewHistogramVec(registerer prometheus.Registerer, buckets []float64, name, help string, labels ...string) *prometheus.HistogramVec {
	o := opts(name, help)
	return Register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: o.Name, Help: o.Help, Buckets: buckets}, labels))
}

// NewDesc describes a metric of a collector. It is a counter if its name ends in _total, and otherwise a gauge.
func NewDesc(name, help string, labels ...string) *prometheus.Desc {
	o := opts(name, help)
	return prometheus.NewDesc(o.Name, o.Help, labels, nil)
}

func opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Name: name, Help: "[" + Stability + "] " + help}
}
