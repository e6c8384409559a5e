package client

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// Handler is notified of changes. Its functions run one at a time, in the order of the events, on the goroutine of
// the informer. Therefore, they must return quickly, e.g. after adding a key to a queue, and must not wait for the
// informer. Each of them may be nil. Panics are recovered, counted and logged.
type Handler[T Object] struct {
	// OnAdd is called for a new object. initial is true for objects that existed before the informer had synced or
	// the handler was added.
	OnAdd func(obj T, initial bool)
	// OnUpdate is called for a changed object. One that was replaced by another of its name causes OnDelete and OnAdd.
	OnUpdate func(old, obj T)
	// OnDelete is called for a deleted object. tombstone is true if the deletion itself was missed during a
	// disconnection: last is then the last observed state, not the final one.
	OnDelete func(last T, tombstone bool)
	// OnLeave is called for an object that still exists but is no longer in the informer: it needs no cleanup.
	OnLeave func(last T, why Leave)

	// changedKey is called with the key of an object that was added, changed or deleted.
	changedKey func(Key)
	removedKey func(Key)
}

// Leave is the reason why an informer no longer contains an object that still exists.
type Leave string

const (
	// RangeMoved means that the object is no longer in the ranges of the informer.
	RangeMoved Leave = "RangeMoved"
	// ShardRemoved means that the shard of the object was removed.
	ShardRemoved Leave = "ShardRemoved"
)

// HandlerOption configures how a handler is called.
type HandlerOption struct{ buffered bool }

// Buffered calls the handler on its own goroutine. If 1,000 changes are pending, the informer waits.
func Buffered() HandlerOption { return HandlerOption{buffered: true} }

// Registration is a registered handler.
type Registration struct {
	remove func()
	synced chan struct{}
	once   sync.Once
}

// Remove removes the handler, which is not called afterwards. It must not be called from a handler.
func (r *Registration) Remove() {
	if r.remove != nil {
		r.remove()
	}
}

// Synced returns a channel that is closed when the handler was notified of all initial objects.
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
	// Unseen is set if a deleted object was not in the store.
	Unseen bool

	// last is the final state of an object that was deleted or, if leave is set, left the informer.
	last      T
	tombstone bool
	leave     Leave
	initial   bool
	// synced is set instead of the other fields if all initial objects were delivered.
	synced bool
}

// handlers are the handlers of an informer, or of several informers. The latter share the lock, so that each
// change is compared with the state of the other informers at that time.
type handlers[T Object] struct {
	informer string
	panics   *atomic.Uint64
	mu       *turn
	// visible yields the objects that handlers see, with the lock held.
	visible iter.Seq2[Key, T]
	// synced is set when handlers were notified of all initial objects.
	synced bool
	all    []*registered[T]
}

// turn orders events and registrations of handlers. It is held while a handler is called.
type turn struct {
	sync.Mutex

	logger atomic.Value // of the informer that was started last
}

type registered[T Object] struct {
	Handler[T]
	*Registration

	of    *handlers[T]
	queue *queue[T]
}

// AddEventHandler adds a handler at any time, and notifies it of all present objects before it returns, or soon
// afterwards if it is buffered. It must not be called from a handler.
func (hs *handlers[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	a := &registered[T]{Handler: h, Registration: &Registration{synced: make(chan struct{})}, of: hs}
	if slices.Contains(options, Buffered()) {
		a.queue = &queue[T]{to: a}
		a.queue.changed.L = &a.queue.mu
	}
	a.remove = func() {
		a.queue.close() // before locking, because the lock's owner may be waiting for this queue
		hs.mu.Lock()
		defer hs.mu.Unlock()
		hs.all = slices.DeleteFunc(slices.Clone(hs.all), func(other *registered[T]) bool { return other == a })
	}
	if h.OnAdd != nil || h.changedKey != nil {
		for key, obj := range hs.visible {
			a.notify(Change[T]{Key: key, New: obj, Has: true, initial: true})
		}
	}
	hs.all = append(hs.all, a)
	if hs.synced {
		a.notify(Change[T]{synced: true})
	}
	return a.Registration
}

// AddKeyHandler adds a handler of keys. changed is called for objects that are added, changed or deleted, and removed
// for objects that leave the informer.
func (hs *handlers[T]) AddKeyHandler(changed, removed func(Key), options ...HandlerOption) *Registration {
	return hs.AddEventHandler(Handler[T]{changedKey: changed, removedKey: removed}, options...)
}

// Pause calls f while no handler runs: the Lister then returns exactly what the handlers were notified of. It must
// not be called from a handler, and f must return soon.
func (hs *handlers[T]) Pause(f func()) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	f()
}

// notify notifies the handlers of a change, with the lock held.
func (hs *handlers[T]) notify(c Change[T]) {
	for _, a := range hs.all {
		a.notify(c)
	}
}

// notifySynced notifies the handlers that all initial objects were delivered, with the lock held.
func (hs *handlers[T]) notifySynced() {
	hs.synced = true
	hs.notify(Change[T]{synced: true})
}

// wait waits until buffered handlers were notified of all changes.
func (hs *handlers[T]) wait() {
	hs.mu.Lock()
	all := hs.all
	hs.mu.Unlock()
	for _, a := range all {
		a.queue.wait()
	}
}

func (a *registered[T]) notify(c Change[T]) {
	if a.queue != nil {
		a.queue.add(c)
		return
	}
	a.call(c)
}

func (a *registered[T]) call(c Change[T]) {
	switch {
	case c.synced:
		a.markSynced()
	case a.changedKey != nil && c.leave == "":
		a.protect(func() { a.changedKey(c.Key) })
	case a.removedKey != nil && c.leave != "":
		a.protect(func() { a.removedKey(c.Key) })
	}
	switch {
	case c.Same && a.OnUpdate != nil:
		a.protect(func() { a.OnUpdate(c.Old, c.New) })
	case c.Same:
	case c.Had && c.leave != "" && a.OnLeave != nil:
		a.protect(func() { a.OnLeave(c.last, c.leave) })
	case c.Had && c.leave != "":
	case c.Had && a.OnDelete != nil:
		last, tombstone := c.last, c.tombstone
		if c.Has {
			last, tombstone = c.Old, true
		}
		a.protect(func() { a.OnDelete(last, tombstone) })
	}
	if c.Has && !c.Same && a.OnAdd != nil {
		a.protect(func() { a.OnAdd(c.New, c.initial) })
	}
}

// protect calls f, and counts and logs a panic.
func (a *registered[T]) protect(f func()) {
	defer func() {
		if r := recover(); r != nil {
			a.of.panics.Add(1)
			logger, _ := a.of.mu.logger.Load().(klog.Logger)
			logger.Error(fmt.Errorf("%w: %v", errPanic, r), "Recovered from a panic of a handler", "informer", a.of.informer, "stack", string(debug.Stack()))
		}
	}()
	f()
}

var errPanic = errors.New("a handler panicked")

// buffer is the capacity of the queue of a buffered handler.
const buffer = 1000

// queue contains the pending changes of a buffered handler. Its goroutine runs while there are any.
type queue[T Object] struct {
	to *registered[T]

	mu              sync.Mutex
	changed         sync.Cond
	entries         []Change[T]
	running, closed bool
}

func (q *queue[T]) add(c Change[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.entries) >= buffer && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return
	}
	q.entries = append(q.entries, c)
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *queue[T]) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.entries) > 0 {
		c := q.entries[0]
		q.entries[0] = Change[T]{}
		q.entries = q.entries[1:]
		q.changed.Broadcast()
		q.mu.Unlock()
		q.to.call(c)
		q.mu.Lock()
	}
	q.entries, q.running = nil, false
	q.changed.Broadcast()
}

func (q *queue[T]) wait() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.changed.Wait()
	}
}

// close drops pending changes and waits until the handler has returned.
func (q *queue[T]) close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	q.closed, q.entries = true, nil
	q.changed.Broadcast()
	q.mu.Unlock()
	q.wait()
}
