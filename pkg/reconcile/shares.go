package reconcile

import (
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/util/workqueue"

	"github.com/shardplane/shardplane/pkg/client"
)

// clusterOf returns the logical cluster of a key; false if the key does not identify one.
func clusterOf(key any) (logicalcluster.Name, bool) {
	switch key := key.(type) {
	case client.Key:
		return key.Cluster, true
	case logicalcluster.Name:
		return key, true
	case interface{ LogicalCluster() logicalcluster.Name }:
		return key.LogicalCluster(), true
	default:
		return "", false
	}
}

// share returns the default limit of workers for one logical cluster.
func share(workers int) int { return max(1, workers*3/4) }

// shares orders the keys of a workqueue: logical clusters are served in round-robin order, and each may use a limited
// number of workers. Hence neither many keys of one logical cluster nor slow ones block the others. Keys without a
// logical cluster are served in FIFO order.
//
// The workqueue calls Push and Pop under its own lock and adds each key at most once. Done is called without that lock.
type shares[K comparable] struct {
	most int

	mu       sync.Mutex
	clusters map[logicalcluster.Name]*clusterQueue[K]
	// turns are the queues that have keys and may use another worker, in the order of service.
	turns []*clusterQueue[K]
}

type clusterQueue[K comparable] struct {
	keys    []K
	running int
	bounded bool
	queued  bool // in turns
}

var _ workqueue.Queue[int] = &shares[int]{}

func newShares[K comparable](most int) *shares[K] {
	return &shares[K]{most: most, clusters: map[logicalcluster.Name]*clusterQueue[K]{}}
}

// Touch implements workqueue.Queue. A queued key keeps its position.
func (*shares[K]) Touch(K) {}

// Push implements workqueue.Queue.
func (s *shares[K]) Push(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, bounded := clusterOf(key)
	l := s.clusters[cluster]
	if l == nil {
		l = &clusterQueue[K]{bounded: bounded}
		s.clusters[cluster] = l
	}
	l.keys = append(l.keys, key)
	s.queueLocked(l)
}

func (s *shares[K]) queueLocked(l *clusterQueue[K]) {
	if !l.queued && len(l.keys) > 0 && (!l.bounded || l.running < s.most) {
		l.queued = true
		s.turns = append(s.turns, l)
	}
}

// Len implements workqueue.Queue. It returns a lower bound of the keys that can be processed now, which is 0 only if
// there are none.
func (s *shares[K]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.turns)
}

// Pop implements workqueue.Queue.
func (s *shares[K]) Pop() (key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.turns[0]
	s.turns[0] = nil
	s.turns = s.turns[1:]
	key = l.keys[0]
	l.keys[0] = *new(K)
	l.keys = l.keys[1:]
	l.running++
	l.queued = false
	s.queueLocked(l)
	return key
}

// Done must be called after the key that Pop returned was processed. It does not need to wake a worker, because the
// worker that processed the key dequeues the next one.
func (s *shares[K]) Done(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, _ := clusterOf(key)
	l := s.clusters[cluster]
	l.running--
	s.queueLocked(l)
	if l.running == 0 && len(l.keys) == 0 {
		delete(s.clusters, cluster)
	}
}
