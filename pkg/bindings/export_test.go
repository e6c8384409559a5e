package bindings

import "github.com/kcp-dev/logicalcluster/v3"

// Next returns the number of callers that wait for the next read of stored bindings.
func (x *Index) Next(cluster logicalcluster.Name) int {
	x.stored.mu.Lock()
	defer x.stored.mu.Unlock()
	if next := x.stored.next[cluster]; next != nil {
		return next.waiting
	}
	return 0
}
