package reconcile

import (
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/util/workqueue"

	"github.com/shardplane/shardplane/pkg/client"
)

// clusterOf returns the logical cluster that a key names; false for keys of other
// kinds.
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

// share returns how many of the workers one logical cluster may keep busy: not all of
// them, where there are several.
func share(workers int) int { return max(1, workers*3/4) }

// shares is the order in which keys are worked on: the logical clusters take turns,
// and each keeps no more than a share of the workers busy. So neither many keys of
// one, nor some that take long, keep the workers from all others. Keys that name no
// logical cluster come as they were added.
//
// It is the queue below a workqueue, which calls Push and Pop under a lock of its
// own, and knows a key once at most. Done is called beside it.
type shares[K comparable] struct {
	most int

	mu       sync.Mutex
	clusters map[logicalcluster.Name]*line[K]
	// turns are the lines that have keys and a worker to take them, the next first.
	turns []*line[K]
}

// line is the keys of one logical cluster that wait.
type line[K comparable] struct {
	keys    []K
	running int
	bounded bool
	queued  bool // in turns
}

var _ workqueue.Queue[int] = &shares[int]{}

func newShares[K comparable](most int) *shares[K] {
	return &shares[K]{most: most, clusters: map[logicalcluster.Name]*line[K]{}}
}

// Touch implements workqueue.Queue: a key that waits keeps its place.
func (*shares[K]) Touch(K) {}

// Push implements workqueue.Queue.
func (s *shares[K]) Push(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, bounded := clusterOf(key)
	l := s.clusters[cluster]
	if l == nil {
		l = &line[K]{bounded: bounded}
		s.clusters[cluster] = l
	}
	l.keys = append(l.keys, key)
	s.queueLocked(l)
}

// queueLocked gives the line its next turn, if it has something to do with it.
func (s *shares[K]) queueLocked(l *line[K]) {
	if !l.queued && len(l.keys) > 0 && (!l.bounded || l.running < s.most) {
		l.queued = true
		s.turns = append(s.turns, l)
	}
}

// Len implements workqueue.Queue: how many keys can be worked on now, or fewer, but 0
// only if there are none.
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

// Done says that a key which Pop has returned is not worked on any more. The worker
// that did so looks for the next key after it: nobody else need be woken.
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
