package shardhealth

import (
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// hearing is what was heard of each shard, counted in heartbeats of the own one.
type hearing struct {
	self string

	mu sync.Mutex
	// beats are how many heartbeats of the own shard were seen.
	beats uint64
	by    map[string]sight
}

// sight is when a shard was heard of last.
type sight struct {
	renewed metav1.MicroTime
	beats   uint64
	// renewal is set when this process has seen a renewal, and not only what was there.
	renewal bool
}

func newHearing(self string) *hearing { return &hearing{self: self, by: map[string]sight{}} }

// verdict is what is known of a shard.
type verdict int

const (
	// unknown is a shard of which this process has not heard yet, nor missed anything.
	unknown verdict = iota
	alive
	missing
)

// of returns what is known of a shard.
func (h *hearing) of(shard string) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.by[shard]
	switch {
	case !ok:
		return unknown
	case h.beats-s.beats >= shardload.Missed:
		return missing
	case s.renewal:
		return alive
	default:
		return unknown
	}
}

// hear notes a heartbeat, and reports whether it is a new one of the own shard, by which the
// others are judged.
func (h *hearing) hear(shard string, lease *coordinationv1.Lease) (judge bool) {
	if lease.Spec.RenewTime == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.by[shard]
	if ok && last.renewed.Equal(lease.Spec.RenewTime) {
		return false
	}
	own := ok && shard == h.self
	if own {
		h.beats++
	}
	h.by[shard] = sight{renewed: *lease.Spec.RenewTime, beats: h.beats, renewal: ok}
	return own
}

func (h *hearing) forget(shard string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.by, shard)
}

// handler is told of heartbeats, and queues those about whom there may be something new:
// all has all of them queued.
func (h *hearing) handler(queue reconcile.Queue[string], all func(reconcile.Queue[string])) client.Handler[*coordinationv1.Lease] {
	heard := func(lease *coordinationv1.Lease) {
		shard := lease.Labels[shardload.LeaseLabel]
		if h.hear(shard, lease) {
			all(queue)
		}
		queue.Add(shard)
	}
	return client.Handler[*coordinationv1.Lease]{
		OnAdd:    func(lease *coordinationv1.Lease, _ bool) { heard(lease) },
		OnUpdate: func(_, lease *coordinationv1.Lease) { heard(lease) },
		OnDelete: func(last *coordinationv1.Lease, _ bool) {
			shard := last.Labels[shardload.LeaseLabel]
			h.forget(shard)
			queue.Add(shard)
		},
	}
}
