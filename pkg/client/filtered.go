package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// Filtered is the component that selects the objects in the ranges of an informer.
type Filtered string

const (
	// FilteredByServer means that the server sends only objects in the ranges.
	FilteredByServer Filtered = "server"
	// FilteredByClient means that the server sends all objects and the informer discards the others.
	FilteredByClient Filtered = "client"
	// FilteredUnknown is the state before the first response, and of informers without ranges.
	FilteredUnknown Filtered = "unknown"
)

type filterReport struct {
	name      string
	mu        sync.Mutex
	by        Filtered
	logged    sync.Once
	discarded atomic.Uint64
}

func newReport(name string) *filterReport { return &filterReport{name: name, by: FilteredUnknown} }

func (r *filterReport) filtered() Filtered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by
}

func (r *filterReport) set(ctx context.Context, by Filtered, why error) {
	r.mu.Lock()
	before := r.by
	r.by = by
	r.mu.Unlock()
	if before == by {
		return
	}
	logger := klog.FromContext(ctx).WithValues("informer", r.name)
	if by != FilteredByClient {
		logger.V(2).Info("Filtering has changed", "before", before, "now", by)
		return
	}
	r.logged.Do(func() {
		logger.Info("The server does not filter by the informer's ranges: each replica receives all objects, and discards those of others", "why", why)
	})
}

var errNotFiltered = errors.New("the server does not support shard selectors, or its feature gate ShardedListAndWatch is disabled")
