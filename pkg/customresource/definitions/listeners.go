package definitions

import (
	"slices"
	"sync"
)

// listeners are functions that are told something.
type listeners[T any] struct {
	mu  sync.Mutex
	all []*func(T)
}

// add has f told from now on, until remove is called.
func (l *listeners[T]) add(f func(T)) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(slices.Clip(l.all), &f)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(slices.Clone(l.all), func(other *func(T)) bool { return other == &f })
	}
}

func (l *listeners[T]) tell(what T) {
	l.mu.Lock()
	all := l.all
	l.mu.Unlock()
	for _, f := range all {
		(*f)(what)
	}
}
