package rbac

import "sync/atomic"

// listed is embedded by what a list holds.
type listed struct {
	// gone is the version of the logical cluster from which on it is not there any
	// more; 0 while it is.
	gone atomic.Uint64
}

// in reports whether it was there as of a version.
func (l *listed) in(version uint64) bool {
	gone := l.gone.Load()
	return gone == 0 || gone > version
}

// list is what readers go through without the lock that writers hold: they take
// all under it, and leave out what was not in their version. What has been added
// stays where it is, so that adding and removing one of many is not as much work
// as there are: what is gone is only left behind once it is half of the list.
type list[E interface{ in(version uint64) bool }] struct {
	all  []E
	gone int
}

func (l *list[E]) add(e E) { l.all = append(l.all, e) }

// removed counts one of the list as gone, as it is in a version that is the newest.
func (l *list[E]) removed(version uint64) {
	l.gone++
	if 2*l.gone < len(l.all) { //nolint:mnd // half
		return
	}
	left := make([]E, 0, len(l.all)-l.gone)
	for _, e := range l.all {
		if e.in(version) {
			left = append(left, e)
		}
	}
	l.all, l.gone = left, 0
}
