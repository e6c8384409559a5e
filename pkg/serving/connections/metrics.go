package connections

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Values of the label of open.
const (
	anonymous     = "anonymous"
	authenticated = "authenticated"
)

var (
	open = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "shardplane", Subsystem: "connections", Name: "open",
		Help:           "Connections of clients, by state: authenticated once a user has sent a request, and anonymous before.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	closed = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "shardplane", Subsystem: "connections", Name: "closed_total",
		Help:           "Anonymous connections that were closed because there were more than --max-anonymous-connections.",
		StabilityLevel: metrics.ALPHA,
	})
	rejected = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "shardplane", Subsystem: "connections", Name: "rejected_requests_total",
		Help:           "Requests answered with 429 because their users had more than --max-connections-per-user.",
		StabilityLevel: metrics.ALPHA,
	})

	registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(open, closed, rejected) })
)
