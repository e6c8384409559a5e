package client

import (
	"iter"
	"sync"
)

// view notifies handlers of the changes of several informers as of one. The informers share a lock, so
// that each change is compared with what the others have at that time.
type view[T Object] struct {
	mu       *sync.Mutex
	handlers handlers[T]
	// visible returns the objects of the view, with the lock held.
	visible iter.Seq2[Key, T]
	synced  bool
}

// AddEventHandler adds a handler of the view, as Informer.AddEventHandler does.
func (v *view[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.handlers.add(v.mu, h, options, v.synced, v.visible)
}

// AddKeyHandler is Informer.AddKeyHandler, with the keys of the view.
func (v *view[T]) AddKeyHandler(changed, left func(Key), options ...HandlerOption) *Registration {
	return v.AddEventHandler(Handler[T]{keys: changed, left: left}, options...)
}

// Pause calls f while no handler runs: what the Lister has then is what the handlers have been
// told. It may not be called from a handler, and f must return soon.
func (v *view[T]) Pause(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f()
}

// Wait waits until buffered handlers have been told of all that has happened.
func (v *view[T]) Wait() { v.handlers.wait(v.mu) }

// follow has changed called with the changes of an informer that has not run yet.
func (v *view[T]) follow(informer *Informer[T], changed func(Change[T])) {
	informer.mu = v.mu
	informer.followers = append(informer.followers, changed)
}

// markSynced is called with the lock held when all initial objects have been notified.
func (v *view[T]) markSynced() {
	if !v.synced {
		v.synced = true
		v.handlers.toldInitial()
	}
}

// View is the base of an object that shows a main informer and others as one, e.g. with
// preferences among copies of an object. Union is one of several informers that are equal.
type Composite[T Object] struct{ all view[T] }

// NewView returns a view that has synced when the main informer has, which may have other views
// and handlers. changed is called with the changes of its objects before handlers of the view
// are. visible returns the objects of the view. Both are called with the lock of the view held.
func NewComposite[T Object](main *Informer[T], changed func(Change[T]), visible iter.Seq2[Key, T]) *Composite[T] {
	v := &Composite[T]{view[T]{mu: main.mu, handlers: handlers[T]{name: main.name, counts: main.counts}, visible: visible}}
	main.mu.Lock()
	defer main.mu.Unlock()
	v.all.synced = main.HasSynced()
	main.syncedFollowers = append(main.syncedFollowers, v.all.markSynced)
	main.followers = append(main.followers, changed)
	return v
}

// Follow adds another informer, which has not run yet and is in no other view.
func (v *Composite[T]) Follow(informer *Informer[T], changed func(Change[T])) {
	v.all.follow(informer, changed)
}

// Notify notifies the handlers of the view of a change, with the lock held.
func (v *Composite[T]) Notify(c Change[T]) { v.all.handlers.tell(c) }

// AddEventHandler adds a handler of the view, as Informer.AddEventHandler does.
func (v *Composite[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	return v.all.AddEventHandler(h, options...)
}

// Wait waits until buffered handlers have been notified of everything.
func (v *Composite[T]) Wait() { v.all.Wait() }
