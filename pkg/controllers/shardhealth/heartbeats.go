package shardhealth

import (
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// heartbeats contains the last heartbeat of each shard. Time is measured in heartbeats of the root shard.
type heartbeats struct {
	self string

	mu    sync.Mutex
	beats uint64 // observed heartbeats of the root shard
	by    map[string]lastHeartbeat
}

type lastHeartbeat struct {
	renewed metav1.MicroTime
	beats   uint64
	renewal bool // false for the initial state, which may be old
}

func newHeartbeats(self string) *heartbeats {
	return &heartbeats{self: self, by: map[string]lastHeartbeat{}}
}

type verdict int

const (
	unknown verdict = iota // no heartbeat has been observed, and none is missing
	alive
	missing
)

func (h *heartbeats) of(shard string) verdict {
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

// observe records a heartbeat, and reports whether it is a new one of the root shard, which affects the state of all shards.
func (h *heartbeats) observe(shard string, lease *coordinationv1.Lease) (isRenewalOfRoot bool) {
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
	h.by[shard] = lastHeartbeat{renewed: *lease.Spec.RenewTime, beats: h.beats, renewal: ok}
	return own
}

func (h *heartbeats) forget(shard string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.by, shard)
}

// handler records heartbeats and enqueues the affected shards; all enqueues all shards.
func (h *heartbeats) handler(queue reconcile.Queue[string], all func(reconcile.Queue[string])) client.Handler[*coordinationv1.Lease] {
	observed := func(lease *coordinationv1.Lease) {
		shard := lease.Labels[shardload.LeaseLabel]
		if h.observe(shard, lease) {
			all(queue)
		}
		queue.Add(shard)
	}
	return client.Handler[*coordinationv1.Lease]{
		OnAdd:    func(lease *coordinationv1.Lease, _ bool) { observed(lease) },
		OnUpdate: func(_, lease *coordinationv1.Lease) { observed(lease) },
		OnDelete: func(last *coordinationv1.Lease, _ bool) {
			shard := last.Labels[shardload.LeaseLabel]
			h.forget(shard)
			queue.Add(shard)
		},
	}
}
