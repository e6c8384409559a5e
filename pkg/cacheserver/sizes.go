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
type replica struct {
	replicas

	key string
}

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
	return replica{replicas{segments[3], resource.String()}, segments[4] + "|" + strings.Join(segments[5:], "/")}, true
}

// replicas are the replicas of a resource of a shard.
type replicas struct{ shard, resource string }

// sizes counts the replicas of all shards in etcd by resource.
type sizes struct {
	mu  sync.Mutex
	all map[replicas]size
}

// begin starts a resync.
func (s *sizes) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = map[replicas]size{}
}

// observe handles each stored value and each change.
func (s *sizes) observe(at replica, before, after []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.all[at.replicas]
	now.bytes += int64(len(after) - len(before))
	if before != nil {
		now.objects--
	}
	if after != nil {
		now.objects++
	}
	s.all[at.replicas] = now
	if now.objects == 0 {
		delete(s.all, at.replicas)
	}
}

func (s *sizes) shards() sets.Set[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	shards := sets.New[string]()
	for of := range s.all {
		shards.Insert(of.shard)
	}
	return shards
}

// identified returns the replicas of CachedResources.
func (s *sizes) identified() (all []replicas) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of := range s.all {
		if strings.Contains(of.resource, ":") {
			all = append(all, of)
		}
	}
	return all
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
	for of, now := range s.all {
		ch <- prometheus.MustNewConstMetric(objectsGauge, prometheus.GaugeValue, float64(now.objects), of.shard, of.resource)
		ch <- prometheus.MustNewConstMetric(bytesGauge, prometheus.GaugeValue, float64(now.bytes), of.shard, of.resource)
	}
}
