package usage

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Follower receives all stored objects in the order of etcd, from one goroutine.
type Follower struct {
	// Begin starts a full resync, which Complete finishes at a revision. A resync may be restarted.
	Begin    func()
	Complete func(revision uint64)
	// Changed receives the stored values of an object by its key, without the prefix of all keys. before is nil for
	// a new object and during a resync, after is nil for a deleted object. The values must not be modified.
	Changed func(key string, before, after []byte, revision uint64)
}

type following struct {
	mu sync.Mutex
	// requested becomes active when the next scan begins.
	requested, active *Follower
	again             chan struct{}
	// revision is the revision up to which the follower is notified; moved is closed and replaced when it grows.
	revision int64
	moved    chan struct{}
}

type listening struct {
	mu        sync.RWMutex
	listeners map[*func(key string)]struct{}
}

func (l *listening) notify(key string) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for changed := range l.listeners {
		(*changed)(key)
	}
}

// streamContext returns a context with an etcd stream of its own, because etcd reports progress per stream.
func streamContext(ctx context.Context) context.Context {
	return clientv3.WithRequireLeader(metadata.AppendToOutgoingContext(ctx, "source", "usage"))
}

func (w *following) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.again: // this scan fulfills it
	default:
	}
	w.active, w.revision = w.requested, 0
	if w.active != nil {
		w.active.Begin()
	}
}

func (w *following) notify(key string, before, after []byte, revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active != nil {
		w.active.Changed(key, before, after, uint64(revision)) //nolint:gosec // revisions are positive
	}
}

func (w *following) complete(revision int64) {
	w.mu.Lock()
	if w.active != nil {
		w.active.Complete(uint64(revision)) //nolint:gosec // revisions are positive
	}
	w.mu.Unlock()
	w.move(revision)
}

// move records the revision up to which the follower is notified.
func (w *following) move(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active != nil {
		w.revision = revision
		close(w.moved)
		w.moved = make(chan struct{})
	}
}
