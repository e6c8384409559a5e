package versions

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
)

// countPeriod is how often the objects of resources are counted; upstream's.
const countPeriod = time.Minute

// errUncounted makes a metric say that its value is not known.
var errUncounted = errors.New("not all objects could be counted")

// Count keeps the metrics that tell how many objects of each resource there are
// until ctx ends: those of all schemas and logical clusters together. Upstream
// has every registry count, which here would be every schema, and with a
// goroutine each.
func (s *Stores) Count(ctx context.Context) {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case key := <-s.opened:
			s.countOne(ctx, key)
		case <-ticker.C:
			for _, key := range s.keys() {
				s.countOne(ctx, key)
			}
		}
	}
}

// keys returns the keys of all stores.
func (s *Stores) keys() []schema.GroupResource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.stores))
}

// countOne counts the objects of a store, of all identities.
func (s *Stores) countOne(ctx context.Context, key schema.GroupResource) {
	s.mu.Lock()
	raw := s.stores[key]
	s.mu.Unlock()
	if raw == nil {
		return
	}
	sum := tally{resources: 1}
	if stats, err := raw.Stats(ctx); err != nil {
		sum.failed = 1
	} else {
		sum.objects = stats.ObjectCount
		sum.bytes = stats.ObjectCount * stats.EstimatedAverageObjectSizeBytes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stores[key] != nil {
		s.tallies.set(s.config.MetricName(raw.resource), key, sum)
	}
}

// tally is what was counted of some resources.
type tally struct {
	resources, failed, objects, bytes int64
}

func (t tally) plus(o tally, sign int64) tally {
	return tally{t.resources + sign*o.resources, t.failed + sign*o.failed, t.objects + sign*o.objects, t.bytes + sign*o.bytes}
}

// tallies are what was counted of each resource, and the sums of those that have
// one name in metrics.
type tallies struct {
	of, sums map[schema.GroupResource]tally
}

// set takes over what was counted of a resource; the zero tally forgets it.
func (t tallies) set(name, resource schema.GroupResource, counted tally) {
	sum := t.sums[name].plus(t.of[resource], -1).plus(counted, 1)
	t.of[resource], t.sums[name] = counted, sum
	if counted == (tally{}) {
		delete(t.of, resource)
	}
	if sum.resources == 0 {
		delete(t.sums, name)
		metrics.DeleteStoreStats(name)
		return
	}
	stats, err := storage.Stats{ObjectCount: sum.objects}, error(nil)
	if sum.objects > 0 {
		stats.EstimatedAverageObjectSizeBytes = sum.bytes / sum.objects
	}
	if sum.failed > 0 {
		err = errUncounted
	}
	metrics.UpdateStoreStats(name, stats, err)
}
