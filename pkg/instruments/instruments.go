// Package instruments registers the metrics of a server in the server's own registry, so that several servers in one
// process, as in tests, do not share them.
package instruments

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers a collector and returns it, or the one that was registered before with the same descriptors:
// controllers are made again whenever their replica leads. A nil registerer registers nothing.
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
		panic(err) // two packages have a metric of one name
	}
	return collector
}
