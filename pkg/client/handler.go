package client

import (
	"sync"
)

// Handler is told about changes. Its functions run one at a time, in the order of the events,
// on the goroutine of the informer: they must return soon (put a key into a queue) and must
// not wait for the informer. Any may be nil. One that panics is counted, and logged.
type Handler[T Object] struct {
	// OnAdd is called for a new object. initial is true for objects that
	// existed before the informer had synced or the handler was added.
	OnAdd func(obj T, initial bool)
	// OnUpdate is called for a changed object. An object that was replaced by
	// another one of the same name is a delete and an add instead.
	OnUpdate func(old, obj T)
	// OnDelete is called for an object that is gone. tombstone says that the
	// deletion itself was missed, because the informer was disconnected: last
	// is then the last state known, not the final one.
	OnDelete func(last T, tombstone bool)
	// OnLeave is called instead for an object that is as it was, and that the informer does
	// not hold any more. Who cleans up after deletions has nothing to do, and who keeps
	// something for each object forgets it.
	OnLeave func(last T, why Leave)

	// keys is told the key, by the view that has it, of what is added, changed or deleted.
	keys func(Key)
	// left is told that of what leaves.
	left func(Key)
}

// Leave says why an informer does not hold an object any more.
type Leave string

const (
	// RangeMoved says that the object is not in the ranges of the informer any more.
	RangeMoved Leave = "RangeMoved"
	// ShardGone says that the shard of the object is not among those that a view is of any more.
	ShardRemoved Leave = "ShardGone"
)

// HandlerOption says how a handler is called.
type HandlerOption func(*handlerOptions)

type handlerOptions struct {
	buffered bool
}

// Buffered has a handler called on a goroutine of its own, so that it does not keep the
// informer and other handlers from going on. A thousand changes wait for it; with more, the
// informer waits.
func Buffered() HandlerOption { return func(o *handlerOptions) { o.buffered = true } }

// Registration is a handler that was added.
type Registration struct {
	remove func()
	synced chan struct{}
	once   sync.Once
}

// Remove removes the handler: when it returns, the handler is not called any more. It may not
// be called from a handler.
func (r *Registration) Remove() {
	if r.remove != nil {
		r.remove()
	}
}

// Synced returns a channel that is closed when the handler has been told of all that there was
// when its informer had synced and it was added, whichever came last.
func (r *Registration) Synced() <-chan struct{} { return r.synced }

// HasSynced reports whether Synced is closed.
func (r *Registration) HasSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

func (r *Registration) markSynced() { r.once.Do(func() { close(r.synced) }) }

// Change is how an object of an informer, or of a View, has changed.
type Change[T Object] struct {
	Key Key
	// Old and New are the object before and after the change; Had and Has report whether
	// there was one. Same reports whether both are one object, and not another
	// one of the same name.
	Old, New       T
	Had, Has, Same bool

	// last is what handlers are told of an object that is gone, or, if left says why, that is
	// not held any more.
	last      T
	tombstone bool
	left      Leave
	initial   bool
	// unseen says that the object, which is gone, was not in the store.
	unseen bool
}
