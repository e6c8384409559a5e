package definitions

import (
	"slices"
	"sync"
)

// Listeners are functions that are told something. The zero value has none; methods may
// be called at the same time.
type Listeners[T any] struct {
	mu  sync.Mutex
	all []*func(T)
}

// Add has f told from now on, until remove is called.
func (l *Listeners[T]) Add(f func(T)) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(slices.Clip(l.all), &f)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(slices.Clone(l.all), func(other *func(T)) bool { return other == &f })
	}
}

// Tell tells all that there are, one after the other.
func (l *Listeners[T]) Notify(what T) {
	l.mu.Lock()
	all := l.all
	l.mu.Unlock()
	for _, f := range all {
		(*f)(what)
	}
}
