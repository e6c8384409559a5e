package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// Filtered says who selects the objects that are in the ranges of an informer.
type Filtered string

const (
	// FilteredByServer says that the server sends no others.
	FilteredByServer Filtered = "server"
	// FilteredByClient says that the server sends others, too, at the cost of all, and the informer
	// discards them.
	FilteredByClient Filtered = "client"
	// FilteredUnknown says that the server has not said so, and has not sent others yet. So it is before
	// the first answer, and without ranges.
	FilteredUnknown Filtered = "unknown"
)

// report is what is known of who filters.
type report struct {
	name      string
	mu        sync.Mutex
	by        Filtered
	logged    sync.Once
	discarded atomic.Uint64
}

func newReport(name string) *report { return &report{name: name, by: FilteredUnknown} }

// filtered returns who filters.
func (r *report) filtered() Filtered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by
}

// learn notes who filters; why says why it is the client.
func (r *report) learn(ctx context.Context, by Filtered, why error) {
	r.mu.Lock()
	before := r.by
	r.by = by
	r.mu.Unlock()
	if before == by {
		return
	}
	logger := klog.FromContext(ctx).WithValues("informer", r.name)
	if by != FilteredByClient {
		logger.V(2).Info("Who filters what the informer holds has changed", "before", before, "now", by)
		return
	}
	r.logged.Do(func() {
		logger.Info("The server sends objects beyond the informer's ranges: each replica receives all of them, and discards those of others", "why", why)
	})
}

var errNotFiltered = errors.New("it does not know shard selectors, or its feature gate ShardedListAndWatch is off")
