package client

import (
	"sync"
)

// Handler is notified of changes. Its functions run one at a time, in the order of the events, on the goroutine of
// the informer: they must return soon (e.g. add a key to a queue) and must not wait for the informer. Any may be
// nil. Panics are recovered, counted and logged.
type Handler[T Object] struct {
	// OnAdd is called for a new object. initial is true for objects that existed before the informer had synced or
	// the handler was added.
	OnAdd func(obj T, initial bool)
	// OnUpdate is called for a changed object. An object that was replaced by another one of the same name causes
	// OnDelete and OnAdd instead.
	OnUpdate func(old, obj T)
	// OnDelete is called for a deleted object. tombstone is true if the deletion itself was missed because the
	// informer was disconnected: last is then the last observed state, not the final one.
	OnDelete func(last T, tombstone bool)
	// OnLeave is called instead of OnDelete for an object that still exists but is no longer in the informer.
	// Per-object state should be dropped, but not cleaned up as after a deletion.
	OnLeave func(last T, why Leave)

	// changedKey is called with the key of an object that was added, changed or deleted.
	changedKey func(Key)
	leftKey    func(Key)
}

// Leave is the reason why an informer no longer contains an object that still exists.
type Leave string

const (
	// RangeMoved means that the object is no longer in the ranges of the informer.
	RangeMoved Leave = "RangeMoved"
	// ShardRemoved means that the shard of the object was removed.
	ShardRemoved Leave = "ShardGone"
)

// HandlerOption configures how a handler is called.
type HandlerOption func(*handlerOptions)

type handlerOptions struct {
	buffered bool
}

// Buffered calls the handler on its own goroutine, so that it does not delay the informer and other handlers. If
// 1,000 changes are pending, the informer waits.
func Buffered() HandlerOption { return func(o *handlerOptions) { o.buffered = true } }

// Registration is a registered handler.
type Registration struct {
	remove func()
	synced chan struct{}
	once   sync.Once
}

// Remove removes the handler. The handler is not called after Remove has returned. It must not be called from a
// handler.
func (r *Registration) Remove() {
	if r.remove != nil {
		r.remove()
	}
}

// Synced returns a channel that is closed when the handler was notified of all objects that existed when its
// informer had synced and the handler was added.
func (r *Registration) Synced() <-chan struct{} { return r.synced }

// HasSynced reports whether Synced is closed.
func (r *Registration) HasSynced() bool { return isClosed(r.synced) }

func (r *Registration) markSynced() { r.once.Do(func() { close(r.synced) }) }

// Change is a change of an object of an informer, a Composite or a Union.
type Change[T Object] struct {
	Key Key
	// Old and New are the object before and after the change; Had and Has report whether it existed. Same reports
	// whether both are the same object, i.e. have the same UID.
	Old, New       T
	Had, Has, Same bool

	// last is the final state of an object that was deleted or, if leave is set, left the informer.
	last      T
	tombstone bool
	leave     Leave
	initial   bool
	// unseen is set if a deleted object was not in the store.
	unseen bool
}
