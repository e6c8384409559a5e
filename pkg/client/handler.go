package client

import (
	"slices"
	"sync"
)

// Handler is told about changes. Its functions run one at a time on the
// goroutine of the informer, in the order of the events: they must return soon
// (put a key into a queue) and must not wait for the informer. Any may be nil.
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
}

// change is how an object of a store, or of a view of several, has changed.
type change[T Object] struct {
	key Key
	// old and obj are the object before and after; had and has report whether
	// there was one. same reports whether both are one object, and not another
	// one of the same name.
	old, obj       T
	had, has, same bool
	// last is what handlers are told of an object that is gone.
	last      T
	tombstone bool
	initial   bool
}

// handlers are called under the lock that orders their events.
type handlers[T Object] []*Handler[T]

// add adds h, after telling it of what is there. The caller holds the lock mu.
func (hs *handlers[T]) add(mu sync.Locker, h Handler[T], present func() []T) (remove func()) {
	if h.OnAdd != nil {
		for _, obj := range present() {
			h.OnAdd(obj, true)
		}
	}
	*hs = append(*hs, &h)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		*hs = slices.DeleteFunc(slices.Clone(*hs), func(other *Handler[T]) bool { return other == &h })
	}
}

// tell tells all handlers of a change.
func (hs handlers[T]) tell(c change[T]) {
	for _, h := range hs {
		switch {
		case c.same:
			if h.OnUpdate != nil {
				h.OnUpdate(c.old, c.obj)
			}
			continue
		case c.had && h.OnDelete != nil && c.has:
			h.OnDelete(c.old, true)
		case c.had && h.OnDelete != nil:
			h.OnDelete(c.last, c.tombstone)
		}
		if c.has && h.OnAdd != nil {
			h.OnAdd(c.obj, c.initial)
		}
	}
}
