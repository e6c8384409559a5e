package rbac

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
)

// freshnessTimeout is the maximum time that decisions wait after a write.
const freshnessTimeout = 10 * time.Second

// maxPending limits the logical clusters with pending writes. Decisions do not wait for writes beyond it.
//
//reference:none
const maxPending = 4096

type resourceIndex int

const (
	resourceRoles resourceIndex = iota
	resourceRoleBindings
	resourceClusterRoles
	resourceClusterRoleBindings
	resourceCount
)

var resourceIndices = map[string]resourceIndex{
	"roles":               resourceRoles,
	"rolebindings":        resourceRoleBindings,
	"clusterroles":        resourceClusterRoles,
	"clusterrolebindings": resourceClusterRoleBindings,
}

// freshness makes decisions wait for writes that this server has acknowledged, but that its informers have
// not seen yet. A wildcard informer receives the writes of all logical clusters in order. Therefore, it has
// received a write if it has received any object of the resource with the same or a higher resourceVersion.
type freshness struct {
	seen [resourceCount]atomic.Uint64
	// count is len(pending). It is almost always zero, which costs one atomic load.
	count atomic.Int64

	mu      sync.Mutex
	pending map[logicalcluster.Name]*pendingWrites
	// changed is closed when seen changes; nil if there are no waiters.
	changed chan struct{}
}

type versions [resourceCount]uint64

// pendingWrites are the latest writes in a logical cluster.
type pendingWrites struct {
	need  versions
	until time.Time
}

// wrote records a write that the informers have to see.
func (f *freshness) wrote(name logicalcluster.Name, resource, resourceVersion string, now time.Time) {
	index, ok := resourceIndices[resource]
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if !ok || err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[index].Load() >= version {
		return
	}
	if len(f.pending) >= maxPending {
		for other, writes := range f.pending {
			if !now.Before(writes.until) {
				f.forget(other)
			}
		}
		if len(f.pending) >= maxPending {
			return
		}
	}
	writes := f.pending[name]
	if writes == nil {
		if f.pending == nil {
			f.pending = map[logicalcluster.Name]*pendingWrites{}
		}
		writes = &pendingWrites{}
		f.pending[name] = writes
		f.count.Add(1)
	}
	writes.need[index] = max(writes.need[index], version)
	writes.until = now.Add(freshnessTimeout)
}

// saw records a version that an informer has seen and the index contains.
func (f *freshness) saw(index resourceIndex, version uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if version <= f.seen[index].Load() {
		return
	}
	f.seen[index].Store(version)
	for name, writes := range f.pending {
		if f.reached(writes.need) {
			f.forget(name)
		}
	}
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (f *freshness) reached(need versions) bool {
	for index, version := range need {
		if f.seen[index].Load() < version {
			return false
		}
	}
	return true
}

// forget ends the wait for writes in a logical cluster. The lock must be held.
func (f *freshness) forget(name logicalcluster.Name) {
	delete(f.pending, name)
	f.count.Add(-1)
}

// pendingIn reports whether wait would wait for a logical cluster.
func (f *freshness) pendingIn(name logicalcluster.Name, now time.Time) bool {
	if f.count.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	writes := f.pending[name]
	return writes != nil && now.Before(writes.until)
}

// wait returns when the informers have seen the pending writes of a logical cluster, or after the timeout.
func (f *freshness) wait(ctx context.Context, name logicalcluster.Name) {
	if f.count.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	writes := f.pending[name]
	if writes == nil {
		return
	}
	need := writes.need
	ctx, cancel := context.WithDeadline(ctx, writes.until)
	defer cancel()
	for !f.reached(need) && ctx.Err() == nil {
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		f.mu.Lock()
	}
}
