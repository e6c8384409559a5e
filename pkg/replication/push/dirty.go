package push

import (
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// coalescing is how long an object that was written waits for further changes.
const coalescing = 50 * time.Millisecond

// doubts are replicas that may not be what they are expected to be, so that they are read before
// they are written. The zero value has none.
type doubts struct {
	mu  sync.Mutex
	all map[client.Key]doubt
}

// doubt is why a replica is doubted.
type doubt int

const (
	// doubtNone: it is as it was written.
	doubtNone doubt = iota
	// doubtWrite: it is not known whether the last write has arrived.
	doubtWrite
	// doubtDigest: its digest is not the expected one.
	doubtDigest
)

func (d *doubts) add(key client.Key, why doubt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[client.Key]doubt{}
	}
	d.all[key] = max(d.all[key], why)
}

// take returns why a replica is doubted, and forgets it.
func (d *doubts) take(key client.Key) doubt {
	d.mu.Lock()
	defer d.mu.Unlock()
	why := d.all[key]
	delete(d.all, key)
	return why
}

// recent are the objects that were written a moment ago. The zero value has none.
type recent struct {
	mu    sync.Mutex
	at    map[client.Key]time.Time
	order []client.Key
}

// wrote notes that an object was written now.
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
	if _, again := r.at[key]; !again {
		r.order = append(r.order, key)
	}
	r.at[key] = time.Now()
}

// wait returns how long an object waits for further changes before it is written again.
func (r *recent) wait(key client.Key) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, written := r.at[key]
	if !written {
		return 0
	}
	return coalescing - time.Since(at)
}
