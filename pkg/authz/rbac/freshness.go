package rbac

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
)

// freshnessTimeout is how long after a write decisions wait for it at most.
const freshnessTimeout = 10 * time.Second

// maxPending bounds the writes that are waited for; with more under way
// decisions do not wait for the oldest.
const maxPending = 4096

// resourceIndex numbers the four resources.
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

// freshness makes decisions wait for what this server has written, and told
// the writer, but not seen in its informers yet. A wildcard informer sees the
// writes of all logical clusters in order, so it has seen a write once it has
// seen any of the same resource with its resourceVersion or a later one.
type freshness struct {
	seen [resourceCount]atomic.Uint64
	// count is len(pending): zero, which it nearly always is, costs one load.
	count atomic.Int64

	mu      sync.Mutex
	pending map[logicalcluster.Name]*pendingWrites
	// changed, if somebody waits, is closed when seen changes.
	changed chan struct{}
}

// versions are resourceVersions of the four resources.
type versions [resourceCount]uint64

// pendingWrites are the last writes in a logical cluster.
type pendingWrites struct {
	need  versions
	until time.Time
}

// wrote notes a write that the informers have to see.
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

// saw notes what an informer has seen, after the index has it.
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

// forget ends the wait for the writes in a logical cluster. The caller holds
// the lock.
func (f *freshness) forget(name logicalcluster.Name) {
	delete(f.pending, name)
	f.count.Add(-1)
}

// pendingIn reports whether the informers have yet to see a write in a logical
// cluster that is worth waiting for.
func (f *freshness) pendingIn(name logicalcluster.Name, now time.Time) bool {
	if f.count.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	writes := f.pending[name]
	return writes != nil && now.Before(writes.until)
}

// wait returns when the informers have seen what was written in a logical
// cluster until now, or when waiting any longer would do more harm than good.
func (f *freshness) wait(ctx context.Context, name logicalcluster.Name) {
	if f.count.Load() == 0 {
		return
	}
	f.mu.Lock()
	writes := f.pending[name]
	if writes == nil {
		f.mu.Unlock()
		return
	}
	need, left := writes.need, time.Until(writes.until)
	f.mu.Unlock()
	timer := time.NewTimer(left)
	defer timer.Stop()
	for {
		f.mu.Lock()
		if f.reached(need) {
			f.mu.Unlock()
			return
		}
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
