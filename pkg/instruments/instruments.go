// Package instruments registers metrics in the registry of a server, so that several servers in one
// process, e.g. in tests, do not share them.
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
