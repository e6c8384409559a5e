package health

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// ObserverName is the observer's name in catalogues, logs and metrics.
const ObserverName = "replication-observer"

// Observer measures since when nothing has been heard of other shards. It implements
// reconcile.Runnable.
type Observer struct {
	self       string
	marks      *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
	registered func(shard string) bool
	registerer prometheus.Registerer

	mu sync.Mutex
	// heard is when the last new mark of a shard came.
	heard map[string]heard
}

type heard struct {
	epoch  string
	number int64
	at     time.Time
}

// NewObserver returns the observer of a shard. marks are those of all shards, which somebody else
// runs; those of shards that are not registered do not count. registerer
// may be nil.
func NewObserver(self string, marks *client.Informer[*replicationcheckpoints.ReplicationCheckpoint], registered func(shard string) bool, registerer prometheus.Registerer) *Observer {
	return &Observer{registerer: registerer, self: self, marks: marks, registered: registered, heard: map[string]heard{}}
}

// Name returns the observer's name.
func (o *Observer) Name() string { return ObserverName }

// Run observes until ctx is done.
func (o *Observer) Run(ctx context.Context) error {
	defer o.marks.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(mark *replicationcheckpoints.ReplicationCheckpoint, _ bool) { o.hear(mark) },
		OnUpdate: func(_, mark *replicationcheckpoints.ReplicationCheckpoint) { o.hear(mark) },
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

// hear notes when a mark came, if it is another one: after a reconnection the last one comes again.
// That a mark is missing says nothing, as after a loss of the cache server's data: the clock goes on.
func (o *Observer) hear(mark *replicationcheckpoints.ReplicationCheckpoint) {
	shard := o.marks.KeyOf(mark).Shard
	if shard == o.self || mark.Name != replicationcheckpoints.Name {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.heard[shard]; !ok || last.epoch != mark.Epoch || last.number != mark.Number {
		o.heard[shard] = heard{mark.Epoch, mark.Number, time.Now()}
	}
}

// staleness returns for how long nothing was heard, by shard.
func (o *Observer) staleness() map[string]time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]time.Duration, len(o.heard))
	for shard, last := range o.heard {
		if o.registered(shard) {
			all[shard] = time.Since(last.at)
		}
	}
	return all
}

var stalenessGauge = prometheus.NewDesc("shardplane_replica_staleness_seconds",
	"[ALPHA] Since when no new mark of another shard has come from the cache server, by the name of that shard: what is known of it may be that old.", []string{"name"}, nil)

// Describe implements prometheus.Collector.
func (o *Observer) Describe(ch chan<- *prometheus.Desc) { ch <- stalenessGauge }

// Collect implements prometheus.Collector.
func (o *Observer) Collect(ch chan<- prometheus.Metric) {
	for shard, since := range o.staleness() {
		ch <- prometheus.MustNewConstMetric(stalenessGauge, prometheus.GaugeValue, since.Seconds(), shard)
	}
}
