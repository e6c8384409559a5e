package customresource

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
)

// countPeriod is how often the objects of resources are counted; upstream's.
const countPeriod = time.Minute

// count keeps the metrics that tell how many objects of each resource there are
// until ctx ends: those of all schemas and logical clusters together. Upstream
// has every registry count, which here would be every schema, and with a
// goroutine each.
func (s *rawStores) count(ctx context.Context) {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case resource := <-s.opened:
			s.countOne(ctx, resource)
		case <-ticker.C:
			for _, resource := range s.resources() {
				s.countOne(ctx, resource)
			}
		}
	}
}

// resources returns the resources that have stores.
func (s *rawStores) resources() []schema.GroupResource {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[schema.GroupResource]bool{}
	var all []schema.GroupResource
	for key := range s.stores {
		if !seen[key.resource] {
			seen[key.resource] = true
			all = append(all, key.resource)
		}
	}
	return all
}

// countOne counts the objects of a resource, of all identities.
func (s *rawStores) countOne(ctx context.Context, resource schema.GroupResource) {
	s.mu.Lock()
	var stores []*rawStore
	for key, raw := range s.stores {
		if key.resource == resource {
			stores = append(stores, raw)
		}
	}
	s.mu.Unlock()

	var sum storage.Stats
	var size int64
	for _, raw := range stores {
		stats, err := raw.Stats(ctx)
		if err != nil {
			s.report(resource, storage.Stats{}, err)
			return
		}
		sum.ObjectCount += stats.ObjectCount
		size += stats.ObjectCount * stats.EstimatedAverageObjectSizeBytes
	}
	if sum.ObjectCount > 0 {
		sum.EstimatedAverageObjectSizeBytes = size / sum.ObjectCount
	}
	s.report(resource, sum, nil)
}

// report sets the metrics of a resource, unless it has no store any more.
func (s *rawStores) report(resource schema.GroupResource, stats storage.Stats, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hasStoreLocked(resource) {
		metrics.UpdateStoreStats(resource, stats, err)
	}
}

func (s *rawStores) hasStoreLocked(resource schema.GroupResource) bool {
	for key := range s.stores {
		if key.resource == resource {
			return true
		}
	}
	return false
}
