package cacheserver

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// size is what a shard has of a resource.
type size struct{ objects, bytes int64 }

// sizes are those of all shards, by resource, as etcd has them.
type sizes struct {
	mu  sync.Mutex
	all map[string]map[string]size
}

// begin says that everything is told anew.
func (s *sizes) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = map[string]map[string]size{}
}

// told is told of what was stored, and what is.
func (s *sizes) told(at replica, before, after []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.all[at.shard]
	if of == nil {
		of = map[string]size{}
		s.all[at.shard] = of
	}
	now := of[at.resource]
	now.bytes += int64(len(after) - len(before))
	if before != nil {
		now.objects--
	}
	if after != nil {
		now.objects++
	}
	of[at.resource] = now
	if now.objects == 0 {
		delete(of, at.resource)
	}
}

// shards returns the shards that have replicas.
func (s *sizes) shards() sets.Set[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	shards := sets.New[string]()
	for shard, of := range s.all {
		if len(of) > 0 {
			shards.Insert(shard)
		}
	}
	return shards
}

// sizeCollector measures the cache servers that run in the process.
type sizeCollector struct {
	metrics.BaseStableCollector

	mu  sync.Mutex
	all map[*sizes]struct{}
}

var (
	sizesRunning = &sizeCollector{all: map[*sizes]struct{}{}}
	objectsGauge = metrics.NewDesc("shardplane_cache_replicas", "Objects that a shard has on the cache server, by the name of the shard and resource.",
		[]string{"name", "resource"}, nil, metrics.ALPHA, "")
	bytesGauge = metrics.NewDesc("shardplane_cache_replica_bytes", "What these take in etcd, without history, by the name of the shard and resource.",
		[]string{"name", "resource"}, nil, metrics.ALPHA, "")
)

func init() { legacyregistry.CustomMustRegister(sizesRunning) }

// Run has the sizes measured until ctx is done.
func (s *sizes) Run(ctx context.Context) error {
	c := sizesRunning
	c.mu.Lock()
	c.all[s] = struct{}{}
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, s)
	return nil
}

// DescribeWithStability implements metrics.StableCollector.
func (c *sizeCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- objectsGauge
	ch <- bytesGauge
}

// CollectWithStability implements metrics.StableCollector. Of several servers in one process, as in tests, the sums
// are told.
func (c *sizeCollector) CollectWithStability(ch chan<- metrics.Metric) {
	type key struct{ shard, resource string }
	sums := map[key]size{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.all {
		s.mu.Lock()
		for shard, of := range s.all {
			for resource, now := range of {
				sum := sums[key{shard, resource}]
				sums[key{shard, resource}] = size{sum.objects + now.objects, sum.bytes + now.bytes}
			}
		}
		s.mu.Unlock()
	}
	for at, sum := range sums {
		ch <- metrics.NewLazyConstMetric(objectsGauge, metrics.GaugeValue, float64(sum.objects), at.shard, at.resource)
		ch <- metrics.NewLazyConstMetric(bytesGauge, metrics.GaugeValue, float64(sum.bytes), at.shard, at.resource)
	}
}
