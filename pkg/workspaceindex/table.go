package workspaceindex

import (
	"math/bits"
	"sync/atomic"
)

const (
	// groupSize is how many slots share a word of tags, which is looked at as one. With that
	// word they are a cache line.
	groupSize = 7
	// tagSize is the size of a tag in bits.
	tagSize = 8
	// tagEmpty marks a slot that has had no entry since the table was made, and tagGone one
	// whose entry was removed. Others have the highest bit, and seven of the entry's hash.
	tagEmpty, tagGone, tagUsed = 0x00, 0x01, 0x80

	everyByte = 0x01010101010101
	highBits  = 0x80808080808080
)

// entry is what a table holds, found by a key of type K. Neither its hash nor what it says
// of a key changes.
type entry[T, K any] interface {
	*T
	hash() uint64
	is(key K) bool
}

// table finds entries by a key. Any number may look things up without a lock while one
// writes: an entry stays in its slot until it is removed, and when the table grows, who
// looks into the former slots sees what was there at that moment.
type table[T, K any, E entry[T, K]] struct {
	current atomic.Pointer[groups[T]]
	// live counts entries, used also the slots of removed ones. Writers only.
	live, used int
}

// groups are the slots of a table, any number of groups: at most 7/8 are in use, and two
// thirds or more when there are many entries, so that processors may keep them near.
type groups[T any] []group[T]

// group is a part of the slots. An entry is in the first group, from that of its hash on,
// that had room.
type group[T any] struct {
	tags    atomic.Uint64
	entries [groupSize]atomic.Pointer[T]
}

// start returns the group where an entry is looked for first, and its tag.
func (s groups[T]) start(hash uint64) (at int, tag uint64) {
	high, _ := bits.Mul64(hash, uint64(len(s)))
	return int(high), hash&0x7f | tagUsed
}

// after returns the group where an entry is looked for next.
func (s groups[T]) after(at int) int {
	if at++; at < len(s) {
		return at
	}
	return 0
}

// matches returns a word with the highest bit set of each byte of tags that is tag; it may be
// set of others above such a byte, too.
func matches(tags, tag uint64) uint64 {
	tags ^= everyByte * tag
	return (tags - everyByte) &^ tags & highBits
}

// find returns the entry of a key, or nil.
func (t *table[T, K, E]) find(hash uint64, key K) E {
	s := t.slots()
	if len(s) == 0 {
		return nil
	}
	for at, tag := s.start(hash); ; at = s.after(at) {
		tags := s[at].tags.Load()
		for hits := matches(tags, tag); hits != 0; hits &= hits - 1 {
			if e := E(s[at].entries[slotOf(hits)].Load()); e != nil && e.is(key) {
				return e
			}
		}
		if hasEmpty(tags) {
			return nil
		}
	}
}

// slots returns the slots, or none before the first entry.
func (t *table[T, K, E]) slots() groups[T] {
	if s := t.current.Load(); s != nil {
		return *s
	}
	return nil
}

// slotOf returns the first slot in a word of which the highest bits of bytes count.
func slotOf(word uint64) int { return bits.TrailingZeros64(word) / tagSize % groupSize }

// where returns the slot of an entry that is there. Writers only.
func (s groups[T]) where(hash uint64, e *T) (at, slot int) {
	for at, tag := s.start(hash); ; at = s.after(at) {
		for hits := matches(s[at].tags.Load(), tag); hits != 0; hits &= hits - 1 {
			if slot := slotOf(hits); s[at].entries[slot].Load() == e {
				return at, slot
			}
		}
	}
}

// add adds an entry whose key the table does not have.
func (t *table[T, K, E]) add(e E) {
	s := t.slots()
	if t.used >= len(s)*groupSize*7/8 {
		s = t.grow()
	}
	t.live++
	if s.put(e.hash(), e) {
		t.used++
	}
}

// put puts an entry into the first slot that is free for it, and reports whether that was
// empty.
func (s groups[T]) put(hash uint64, e *T) (wasEmpty bool) {
	for at, tag := s.start(hash); ; at = s.after(at) {
		tags := s[at].tags.Load()
		free := ^tags & highBits
		if free == 0 {
			continue
		}
		slot := slotOf(free)
		s[at].entries[slot].Store(e) // before its tag: who sees that finds it
		s[at].tags.Store(withTag(tags, slot, tag))
		return tags>>(slot*tagSize)&0xff == tagEmpty
	}
}

func withTag(tags uint64, slot int, tag uint64) uint64 {
	return tags&^(0xff<<(slot*tagSize)) | tag<<(slot*tagSize)
}

// replace puts an entry in the place of one with the same key.
func (t *table[T, K, E]) replace(old, e E) {
	s := t.slots()
	at, slot := s.where(old.hash(), old)
	s[at].entries[slot].Store(e)
}

// remove removes an entry.
func (t *table[T, K, E]) remove(e E) {
	s := t.slots()
	at, slot := s.where(e.hash(), e)
	tags := s[at].tags.Load()
	left := uint64(tagGone)
	if hasEmpty(tags) {
		left = tagEmpty // nobody looks further than this group
		t.used--
	}
	s[at].tags.Store(withTag(tags, slot, left))
	s[at].entries[slot].Store(nil)
	t.live--
}

// hasEmpty reports whether a group has a slot that is empty.
func hasEmpty(tags uint64) bool { return matches(tags, tagEmpty) != 0 }

// grow makes new slots, half as many again as are in use: slots of removed entries become
// empty.
func (t *table[T, K, E]) grow() groups[T] {
	s := make(groups[T], t.live*3/2/groupSize+1)
	for e := range t.all {
		s.put(e.hash(), e)
	}
	t.used = t.live
	t.current.Store(&s)
	return s
}

// all yields the entries: all those that stay meanwhile, once each. Others may write meanwhile.
func (t *table[T, K, E]) all(yield func(E) bool) {
	s := t.slots()
	for at := range s {
		for slot := range s[at].entries {
			if e := E(s[at].entries[slot].Load()); e != nil && !yield(e) {
				return
			}
		}
	}
}
