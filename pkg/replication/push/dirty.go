package push

import (
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// coalescing delays the next write of a replica, to combine further changes.
const coalescing = 50 * time.Millisecond

// dirtyKeys are dirty replicas, which must be read before they are written. The zero value is empty.
type dirtyKeys struct {
	mu  sync.Mutex
	all map[client.Key]dirtyReason
}

// dirtyReason is the reason why a replica is dirty.
type dirtyReason int

const (
	// clean: the replica is as it was written.
	clean dirtyReason = iota
	// dirtyWrite: the result of the last write is unknown.
	dirtyWrite
	// dirtyDigest: the digest is not the expected one.
	dirtyDigest
)

func (d *dirtyKeys) add(key client.Key, why dirtyReason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[client.Key]dirtyReason{}
	}
	d.all[key] = max(d.all[key], why)
}

func (d *dirtyKeys) take(key client.Key) dirtyReason {
	d.mu.Lock()
	defer d.mu.Unlock()
	why := d.all[key]
	delete(d.all, key)
	return why
}

// recent are the replicas that were written within coalescing. The zero value is empty.
type recent struct {
	mu    sync.Mutex
	at    map[client.Key]time.Time
	order []client.Key
}

func (r *recent) wrote(key client.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 && time.Since(r.at[r.order[0]]) >= coalescing {
		delete(r.at, r.order[0])
		r.order = r.order[1:]
	}
	if r.at == nil {
		r.at = map[client.Key]time.Time{}
	}
	if _, written := r.at[key]; !written {
		r.order = append(r.order, key)
	}
	r.at[key] = time.Now()
}

// wait returns the remaining delay of a key.
func (r *recent) wait(key client.Key) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, written := r.at[key]
	if !written {
		return 0
	}
	return coalescing - time.Since(at)
}
