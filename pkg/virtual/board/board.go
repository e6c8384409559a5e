// Package board serves objects of another server read-only: get, paged list and watch. It assigns its own
// resourceVersions, because resourceVersions of a previous source would be invalid.
//
//	Set ─► objects by name ─► Reader: get, list        each reader determines the
//	   └─► recent changes ──► Reader: watch, pages     returned objects (Content)
package board

import (
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// history is the number of changes that are kept for resumed watches and for the pages of lists.
const history = 1000

// Board contains the objects of one resource. Two boards, and two instances of one, never have the same
// versions, unless the clock is set to an earlier time. Its methods may be called concurrently.
type Board struct {
	synced func() error

	mu      sync.Mutex
	objects map[string]entry
	names   []string // of objects, sorted
	// version is the version of the last change; changes contains all changes after oldest.
	version, oldest int64
	changes         []change
	changed         chan struct{} // closed and replaced at each change
	closed          bool
}

// entry is an immutable object with the version of its last change.
type entry struct {
	client.Object

	version int64
}

// change replaces an object by another one. Either may be empty.
type change struct {
	version  int64
	name     string
	old, now entry
}

// NewBoard returns an empty board. synced returns an error until all objects have been set.
func NewBoard(synced func() error) *Board {
	now := time.Now().UnixNano()
	return &Board{synced: synced, objects: map[string]entry{}, version: now, oldest: now, changed: make(chan struct{})}
}

// Set adds or replaces an object, which must not be changed afterwards. If it is nil, the object is removed.
func (b *Board) Set(name string, obj client.Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.objects[name]
	if obj == nil && old.Object == nil {
		return
	}
	b.version++
	c := change{version: b.version, name: name, old: old}
	at, found := slices.BinarySearch(b.names, name)
	if obj == nil {
		delete(b.objects, name)
		b.names = slices.Delete(b.names, at, at+1)
	} else {
		c.now = entry{obj, b.version}
		b.objects[name] = c.now
		if !found {
			b.names = slices.Insert(b.names, at, name)
		}
	}
	b.changes = append(b.changes, c)
	if excess := len(b.changes) - history; excess >= history {
		b.oldest = b.changes[excess-1].version
		b.changes = slices.Clone(b.changes[excess:])
	}
	b.notifyLocked()
}

// Close ends all watches. The board must not be used afterwards.
func (b *Board) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.notifyLocked()
}

func (b *Board) notifyLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *Board) get(name string) entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[name]
}

// at calls visit with the objects at a version, in the order of their names and beginning at from, until it returns
// false. It returns false if the version is unavailable. visit must not call methods of the board.
func (b *Board) at(version int64, from string, visit func(name string, e entry) bool) (ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version < b.oldest || version > b.version {
		return false
	}
	// The state of a changed object is the one before its first change after the version.
	before := map[string]entry{}
	names := b.names
	for _, c := range b.changes[b.afterLocked(version):] {
		if _, changed := before[c.name]; !changed {
			before[c.name] = c.old
		}
	}
	if len(before) > 0 {
		names = slices.Clone(names)
		for name, e := range before {
			if at, found := slices.BinarySearch(names, name); !found && e.Object != nil {
				names = slices.Insert(names, at, name)
			}
		}
	}
	at, _ := slices.BinarySearch(names, from)
	for _, name := range names[at:] {
		e, changed := before[name]
		if !changed {
			e = b.objects[name]
		}
		if e.Object != nil && !visit(name, e) {
			break
		}
	}
	return true
}

func (b *Board) afterLocked(version int64) int {
	return sort.Search(len(b.changes), func(i int) bool { return b.changes[i].version > version })
}

// since returns the changes after a version, and a channel that is closed at the next change. It returns false if the
// version is unavailable or the board is closed.
func (b *Board) since(version int64) (changes []change, newest int64, ok bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || version < b.oldest || version > b.version {
		return nil, b.version, false, nil
	}
	return slices.Clone(b.changes[b.afterLocked(version):]), b.version, true, b.changed
}

func (b *Board) newest() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.version
}

func (b *Board) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}
