package cacheserver

import (
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

type size struct{ objects, bytes int64 }

// replica identifies a replica.
type replica struct{ shard, resource, key string }

// replicaAt parses the key of a replica, /<group>/<resource>/[:<identity>/]<shard>/<cluster>/[<namespace>/]<name>. An
// identity becomes part of the resource. It returns false for other keys.
func replicaAt(key string) (at replica, ok bool) {
	segments := strings.Split(key, "/")
	if len(segments) < 6 {
		return replica{}, false
	}
	resource := storage.ResourceOf(key)
	if strings.HasPrefix(segments[3], ":") {
		resource.Resource += segments[3]
		segments = slices.Delete(segments, 3, 4)
	}
	if len(segments) != 6 && len(segments) != 7 || !request.ValidName(segments[3]) || !request.ValidClusterName(logicalcluster.Name(segments[4])) {
		return replica{}, false
	}
	return replica{
		shard: segments[3], resource: resource.String(),
		key: segments[4] + "|" + strings.Join(segments[5:], "/"),
	}, true
}

// replicas are the replicas of a resource of a shard.
type replicas struct{ shard, resource string }

// sizes counts the replicas of all shards in etcd by resource.
type sizes struct {
	mu  sync.Mutex
	all map[string]map[string]size
}

// begin starts a resync.
func (s *sizes) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = map[string]map[string]size{}
}

// observe handles each stored value and each change.
func (s *sizes) observe(at replica, before, after []byte) {
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

var (
	objectsGauge = instruments.NewDesc("shardplane_cache_replicas", "Replicas on the cache server, by name of their shard and resource.", "name", "resource")
	bytesGauge   = instruments.NewDesc("shardplane_cache_replica_bytes", "Size of the replicas in etcd without history, by name of their shard and resource.", "name", "resource")
)

// Describe implements prometheus.Collector.
func (s *sizes) Describe(ch chan<- *prometheus.Desc) {
	ch <- objectsGauge
	ch <- bytesGauge
}

// Collect implements prometheus.Collector.
func (s *sizes) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for shard, of := range s.all {
		for resource, now := range of {
			ch <- prometheus.MustNewConstMetric(objectsGauge, prometheus.GaugeValue, float64(now.objects), shard, resource)
			ch <- prometheus.MustNewConstMetric(bytesGauge, prometheus.GaugeValue, float64(now.bytes), shard, resource)
		}
	}
}
