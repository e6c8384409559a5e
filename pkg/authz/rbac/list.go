package rbac

import "sync/atomic"

// listed is embedded by the elements of a list.
type listed struct {
	// removed is the first version of the logical cluster without the element; 0 if it exists.
	removed atomic.Uint64
}

// in reports whether the element existed at a version.
func (l *listed) in(version uint64) bool {
	removed := l.removed.Load()
	return removed == 0 || removed > version
}

// list can be read without the lock that writers hold. Readers take the slice with the lock held and skip
// elements that did not exist at their version. Elements are appended and never moved, so that changes are
// cheap. The slice is replaced when half of its elements have been removed.
type list[E interface{ in(version uint64) bool }] struct {
	all   []E
	stale int
}

func (l *list[E]) add(e E) { l.all = append(l.all, e) }

// removed counts a removed element. version is the latest version.
func (l *list[E]) removed(version uint64) {
	l.stale++
	if 2*l.stale < len(l.all) { //nolint:mnd // half
		return
	}
	remaining := make([]E, 0, len(l.all)-l.stale)
	for _, e := range l.all {
		if e.in(version) {
			remaining = append(remaining, e)
		}
	}
	l.all, l.stale = remaining, 0
}
