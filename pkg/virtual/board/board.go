// Package board keeps objects that are stored elsewhere, as a shard knows them, and serves them
// to be read: get, list in pages and watch, with resourceVersions of its own. Where the objects
// come from may change, and clients of this server could not go on from versions of that place.
//
//	Set ─► objects by name ─► Reader: get, list        what is shown of them is for
//	   └─► the last changes ─► Reader: watch, pages    each reader to say (View)
package board

import (
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// history is how many changes are kept for watches that resume, and for pages of lists.
const history = 1000

// Board has objects of one resource by name. The versions of two boards, or of two lives of one,
// are never the same, but by clocks that are set back. Its methods may be called at the same time.
type Board struct {
	// known returns nil if all objects are known, or why not.
	known func() error

	mu      sync.Mutex
	objects map[string]entry
	names   []string // of objects, sorted
	// version is that of the last change, and changes has those after the version oldest.
	version, oldest int64
	changes         []change
	// changed is closed, and made anew, with each change. closed ends all watches.
	changed chan struct{}
	closed  bool
}

// entry is an object, which does not change, with the version of its last change.
type entry struct {
	client.Object

	version int64
}

// change is that an object took the place of another; either may be none.
type change struct {
	version  int64
	name     string
	old, now entry
}

// New returns a board without objects. known returns nil once all of them are there, or why
// they are not.
func New(known func() error) *Board {
	now := time.Now().UnixNano()
	return &Board{known: known, objects: map[string]entry{}, version: now, oldest: now, changed: make(chan struct{})}
}

// Set notes what an object is now, which the board keeps; nil is that it is gone.
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
	if more := len(b.changes) - history; more >= history {
		b.oldest = b.changes[more-1].version
		b.changes = slices.Clone(b.changes[more:])
	}
	b.toldLocked()
}

// Close ends all watches. Nothing is served any more.
func (b *Board) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.toldLocked()
}

func (b *Board) toldLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// get returns an object, with none if there is no such object.
func (b *Board) get(name string) entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[name]
}

// at returns all objects by name as they were at a version, which visit is called with in the
// order of their names, from one on, until it returns false. It returns false if the version is not
// known any more, or not yet. visit must not call the board.
func (b *Board) at(version int64, from string, visit func(name string, e entry) bool) (known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version < b.oldest || version > b.version {
		return false
	}
	// What changed since is as it was before its first change.
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

// afterLocked returns the index of the first change after a version.
func (b *Board) afterLocked(version int64) int {
	return sort.Search(len(b.changes), func(i int) bool { return b.changes[i].version > version })
}

// since returns the changes after a version, unless these are not known, and what is closed when
// there are others. Of a board that is closed none are known.
func (b *Board) since(version int64) (changes []change, newest int64, known bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || version < b.oldest || version > b.version {
		return nil, b.version, false, nil
	}
	return slices.Clone(b.changes[b.afterLocked(version):]), b.version, true, b.changed
}

// newest returns the version of the last change.
func (b *Board) newest() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.version
}

// isClosed reports whether the board has been closed.
func (b *Board) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}
