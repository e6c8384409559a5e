package replication

import (
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// doubts are replicas that may not be what they are expected to be, so that they are read before
// they are written. The zero value has none.
type doubts struct {
	mu  sync.Mutex
	all map[client.Key]doubt
}

// doubt is why a replica is doubted.
type doubt struct {
	// heard is the version at which the cache server has told of it, and gone says that it was
	// deleted then. That is no reason if the session has written it itself, or later.
	heard uint64
	gone  bool
	// read is set when it is read in any case, and digests when that is because digests differ.
	read, digests bool
}

func (d *doubts) add(key client.Key, digests bool) {
	d.change(key, func(one *doubt) { one.read, one.digests = true, one.digests || digests })
}

func (d *doubts) hear(key client.Key, version uint64, gone bool) {
	d.change(key, func(one *doubt) {
		if version == 0 { // nobody can tell what is later
			one.read = true
		}
		if version >= one.heard {
			one.heard, one.gone = version, gone
		}
	})
}

func (d *doubts) change(key client.Key, f func(*doubt)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[client.Key]doubt{}
	}
	one := d.all[key]
	f(&one)
	d.all[key] = one
}

// take returns why a replica is doubted, and forgets it.
func (d *doubts) take(key client.Key) doubt {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.all[key]
	delete(d.all, key)
	return one
}

// reads reports whether a replica is to be read, by what is known of it when it was written last.
func (d doubt) reads(acknowledged uint64, has bool) bool {
	return d.read || has && d.heard > acknowledged || !has && d.heard > 0 && !d.gone
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
