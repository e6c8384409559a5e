package authn

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// reloads is shared by all servers of a process, as in tests.
var reloads = metrics.NewCounterVec(&metrics.CounterOpts{
	Namespace: "shardplane", Subsystem: "authentication", Name: "reloads_total",
	Help:           "Files for authentication that were read again because they changed, by what they hold and result: success, or failure (what they held before stays in use).",
	StabilityLevel: metrics.ALPHA,
}, []string{"what", "result"})

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(reloads) })
