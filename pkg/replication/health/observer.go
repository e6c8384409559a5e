package health

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// ObserverName is the name of the observer in logs and metrics.
const ObserverName = "replication-observer"

// Observer measures the time since the last checkpoint of each other shard. It implements reconcile.Runnable.
type Observer struct {
	self        string
	checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
	registered  func(shard string) bool
	registerer  prometheus.Registerer

	mu sync.Mutex
	// observed contains the last checkpoint of each shard.
	observed map[string]observation
}

type observation struct {
	epoch  string
	number int64
	at     time.Time
}

// NewObserver returns the observer of a shard. The informer of all checkpoints must be run by the caller. Shards that
// are not registered are ignored. registerer may be nil.
func NewObserver(self string, checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint], registered func(shard string) bool, registerer prometheus.Registerer) *Observer {
	return &Observer{registerer: registerer, self: self, checkpoints: checkpoints, registered: registered, observed: map[string]observation{}}
}

// Name returns the name of the observer.
func (o *Observer) Name() string { return ObserverName }

// Run observes until ctx is done.
func (o *Observer) Run(ctx context.Context) error {
	defer o.checkpoints.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(cp *replicationcheckpoints.ReplicationCheckpoint, _ bool) { o.observe(cp) },
		OnUpdate: func(_, cp *replicationcheckpoints.ReplicationCheckpoint) { o.observe(cp) },
	}).Remove()
	if o.registerer != nil {
		if err := o.registerer.Register(o); err != nil {
			return fmt.Errorf("metrics of %s: %w", ObserverName, err)
		}
		defer o.registerer.Unregister(o)
	}
	<-ctx.Done()
	return nil
}

// observe records the time of a checkpoint if it has changed, because a reconnection repeats the last one. A missing
// checkpoint is ignored, e.g. after the cache server lost its data, so that the staleness increases.
func (o *Observer) observe(cp *replicationcheckpoints.ReplicationCheckpoint) {
	shard := o.checkpoints.KeyOf(cp).Shard
	if shard == o.self || cp.Name != replicationcheckpoints.Name {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.observed[shard]; !ok || last.epoch != cp.Epoch || last.number != cp.Number {
		o.observed[shard] = observation{cp.Epoch, cp.Number, time.Now()}
	}
}

func (o *Observer) staleness() map[string]time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]time.Duration, len(o.observed))
	for shard, last := range o.observed {
		if o.registered(shard) {
			all[shard] = time.Since(last.at)
		}
	}
	return all
}

var stalenessGauge = instruments.NewDesc("shardplane_replica_staleness_seconds",
	"Time since the last new checkpoint of another shard was observed on the cache server, by the name of that shard: the maximum age of its replicas.", "name")

// Describe implements prometheus.Collector.
func (o *Observer) Describe(ch chan<- *prometheus.Desc) { ch <- stalenessGauge }

// Collect implements prometheus.Collector.
func (o *Observer) Collect(ch chan<- prometheus.Metric) {
	for shard, since := range o.staleness() {
		ch <- prometheus.MustNewConstMetric(stalenessGauge, prometheus.GaugeValue, since.Seconds(), shard)
	}
}
