package client

import (
	"iter"
	"sync"
)

// aggregate notifies handlers of the changes of several informers as if they were one. The informers share a lock,
// so each change is compared with the state of the others at that time.
type aggregate[T Object] struct {
	mu       *sync.Mutex
	handlers handlers[T]
	// visible yields the objects that handlers see, with the lock held.
	visible iter.Seq2[Key, T]
	synced  bool
}

// AddEventHandler adds a handler, as Informer.AddEventHandler does.
func (v *aggregate[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.handlers.add(v.mu, h, options, v.synced, v.visible)
}

// AddKeyHandler adds a handler of keys, as Informer.AddKeyHandler does.
func (v *aggregate[T]) AddKeyHandler(changed, left func(Key), options ...HandlerOption) *Registration {
	return v.AddEventHandler(Handler[T]{changedKey: changed, leftKey: left}, options...)
}

// Pause calls f while no handler runs: the Lister then returns exactly what the handlers were notified of. It must
// not be called from a handler, and f must return soon.
func (v *aggregate[T]) Pause(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f()
}

// Wait waits until buffered handlers were notified of all changes.
func (v *aggregate[T]) Wait() { v.handlers.wait(v.mu) }

func (v *aggregate[T]) follow(informer *Informer[T], changed func(Change[T])) {
	informer.mu = v.mu
	informer.followers = append(informer.followers, changed)
}

func (v *aggregate[T]) markSynced() {
	if !v.synced {
		v.synced = true
		v.handlers.markInitialDelivered()
	}
}

// Composite shows a main informer and other informers as one, e.g. with preferences among copies of an object.
// Union is for informers of equal rank.
type Composite[T Object] struct{ aggregate[T] }

// NewComposite returns a Composite that is synced when the main informer is. The main informer may be part of
// other Composites and have handlers. changed is called with the changes of its objects before handlers are
// notified. visible yields the visible objects. Both are called with the lock held.
func NewComposite[T Object](main *Informer[T], changed func(Change[T]), visible iter.Seq2[Key, T]) *Composite[T] {
	v := &Composite[T]{aggregate[T]{mu: main.mu, handlers: handlers[T]{name: main.name, counts: main.counts}, visible: visible}}
	main.mu.Lock()
	defer main.mu.Unlock()
	v.synced = main.HasSynced()
	main.syncedFollowers = append(main.syncedFollowers, v.markSynced)
	main.followers = append(main.followers, changed)
	return v
}

// Follow adds another informer, which must not have run and not be part of another Composite.
func (v *Composite[T]) Follow(informer *Informer[T], changed func(Change[T])) {
	v.follow(informer, changed)
}

// Notify notifies the handlers of a change. The lock must be held.
func (v *Composite[T]) Notify(c Change[T]) { v.handlers.notify(c) }
