package bindings

import "github.com/kcp-dev/logicalcluster/v3"

// Next returns how many wait for the next read of what is stored.
func (x *Index) Next(cluster logicalcluster.Name) int {
	x.stored.mu.Lock()
	defer x.stored.mu.Unlock()
	if next := x.stored.next[cluster]; next != nil {
		return next.asked
	}
	return 0
}
