package serving

import (
	"context"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
)

// OpenWatches are the watches that end when a logical cluster is switched off, by what
// it is. The zero value is ready for use.
type OpenWatches struct {
	mu sync.Mutex
	in map[logicalcluster.Name]map[*context.CancelFunc]struct{}
}

// End ends all watches that were opened in the logical cluster.
func (o *OpenWatches) End(name logicalcluster.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for end := range o.in[name] {
		(*end)()
	}
}

// open returns the context of a watch that End of any of the names ends. The caller calls
// closed when it has ended, in whatever way.
func (o *OpenWatches) open(ctx context.Context, names ...logicalcluster.Name) (watching context.Context, closed func()) {
	ctx, end := context.WithCancel(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.in == nil {
		o.in = map[logicalcluster.Name]map[*context.CancelFunc]struct{}{}
	}
	for _, name := range names {
		if o.in[name] == nil {
			o.in[name] = map[*context.CancelFunc]struct{}{}
		}
		o.in[name][&end] = struct{}{}
	}
	return ctx, func() {
		end()
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, name := range names {
			delete(o.in[name], &end)
			if len(o.in[name]) == 0 {
				delete(o.in, name)
			}
		}
	}
}
