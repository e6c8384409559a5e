package usage

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Follower is who is told of all objects that are stored, in the order of etcd, by one goroutine.
type Follower struct {
	// Begin says that all that is there is told from now on, and Complete that it was, up to a
	// revision. Should the counter lose track, it begins again.
	Begin    func()
	Complete func(revision uint64)
	// Told tells of an object by its key, without the prefix of all keys, and its values as etcd
	// has them: before is nil of what is new, and while all is told; after of what is gone. They
	// must not be changed.
	Changed func(key string, before, after []byte, revision uint64)
}

// following is who follows, and how far that is. A Follower takes what the counter reads anyway.
type following struct {
	mu sync.Mutex
	// wanted is who asked to follow, and told is who is told, as of the reading of everything
	// that began after it asked.
	wanted, told *Follower
	// again has the counter read everything again.
	again chan struct{}
	// revision is that up to which all was told; moved is closed and renewed when it grows.
	revision int64
	moved    chan struct{}
}

// listening is who is told of keys.
type listening struct {
	mu        sync.RWMutex
	listeners map[*func(key string)]struct{}
}

func (l *listening) tell(key string) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for changed := range l.listeners {
		(*changed)(key)
	}
}

func newFollowing() following {
	return following{again: make(chan struct{}, 1), moved: make(chan struct{})}
}

// streamContext is the context of the counter's own etcd stream: etcd tells the progress of a
// stream to all watches on it.
func streamContext(ctx context.Context) context.Context {
	return clientv3.WithRequireLeader(metadata.AppendToOutgoingContext(ctx, "source", "usage"))
}

// begin says that everything is told from now on.
func (w *following) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.again: // it is done now
	default:
	}
	w.told, w.revision = w.wanted, 0
	if w.told != nil {
		w.told.Begin()
	}
}

func (w *following) tell(key string, before, after []byte, revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told != nil {
		w.told.Changed(key, before, after, uint64(revision)) //nolint:gosec // revisions are positive
	}
}

func (w *following) complete(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told != nil {
		w.told.Complete(uint64(revision)) //nolint:gosec // revisions are positive
		w.moveLocked(revision)
	}
}

// move says that all was told up to a revision.
func (w *following) move(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told != nil {
		w.moveLocked(revision)
	}
}

func (w *following) moveLocked(revision int64) {
	w.revision = revision
	close(w.moved)
	w.moved = make(chan struct{})
}
