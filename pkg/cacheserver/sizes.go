package cacheserver

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

// size is what a shard has of a resource.
type size struct{ objects, bytes int64 }

// replica is where a replica is.
type replica struct{ shard, resource, key string }

// replicaAt takes a key apart, /<group>/<resource>/[:<identity>/]<shard>/<cluster>/[<namespace>/]<name>.
// With an identity, that is of the name of the resource. It is false for keys of nothing that
// shards replicate.
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

// replicas are those that a shard has of a resource.
type replicas struct{ shard, resource string }

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

var (
	objectsGauge = prometheus.NewDesc("shardplane_cache_replicas", "[ALPHA] Objects that a shard has on the cache server, by the name of the shard and resource.", []string{"name", "resource"}, nil)
	bytesGauge   = prometheus.NewDesc("shardplane_cache_replica_bytes", "[ALPHA] What these take in etcd, without history, by the name of the shard and resource.", []string{"name", "resource"}, nil)
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
