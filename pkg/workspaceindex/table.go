package workspaceindex

import (
	"math/bits"
	"sync/atomic"
)

const (
	// groupSize is the number of slots that share a word of tags. With that word they fill a cache line.
	groupSize = 7
	// tagSize is in bits.
	tagSize = 8
	// tagEmpty marks a slot without an entry since the table was made, and tagRemoved one whose entry was removed.
	// Other tags have the highest bit and seven bits of the entry's hash.
	tagEmpty, tagRemoved, tagUsed = 0x00, 0x01, 0x80

	lowBits  = 0x01010101010101
	highBits = 0x80808080808080
)

// entry is an entry of a table with keys of type K. Its hash and key are immutable.
type entry[T, K any] interface {
	*T
	hash() uint64
	is(key K) bool
}

// table is a hash table. Lookups may run concurrently with one writer. An entry remains in its slot until it
// is removed. When the table grows, concurrent lookups use the previous slots.
type table[T, K any, E entry[T, K]] struct {
	current atomic.Pointer[groups[T]]
	// live counts entries, used also slots of removed ones. Writers only.
	live, used int
}

// groups are the slots of a table. At most 7/8 are in use, and at least 2/3 of many.
type groups[T any] []group[T]

// group is a group of slots. An entry is in the first group with a free slot, starting at the one of its hash.
type group[T any] struct {
	tags    atomic.Uint64
	entries [groupSize]atomic.Pointer[T]
}

// start returns the first group to probe, and the tag.
func (s groups[T]) start(hash uint64) (at int, tag uint64) {
	high, _ := bits.Mul64(hash, uint64(len(s)))
	return int(high), hash&0x7f | tagUsed
}

func (s groups[T]) after(at int) int {
	if at++; at < len(s) {
		return at
	}
	return 0
}

// matches returns a word with the highest bit set in each byte of tags that equals tag. Bytes above a match may be
// false positives.
func matches(tags, tag uint64) uint64 {
	tags ^= lowBits * tag
	return (tags - lowBits) &^ tags & highBits
}

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

func (t *table[T, K, E]) slots() groups[T] {
	if s := t.current.Load(); s != nil {
		return *s
	}
	return nil
}

// slotOf returns the slot of the first match.
func slotOf(word uint64) int { return bits.TrailingZeros64(word) / tagSize % groupSize }

// where returns the slot of an existing entry. Writers only.
func (s groups[T]) where(hash uint64, e *T) (at, slot int) {
	for at, tag := s.start(hash); ; at = s.after(at) {
		for hits := matches(s[at].tags.Load(), tag); hits != 0; hits &= hits - 1 {
			if slot := slotOf(hits); s[at].entries[slot].Load() == e {
				return at, slot
			}
		}
	}
}

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

// put stores an entry in the first free slot, and reports whether the slot was empty.
func (s groups[T]) put(hash uint64, e *T) (wasEmpty bool) {
	for at, tag := s.start(hash); ; at = s.after(at) {
		tags := s[at].tags.Load()
		free := ^tags & highBits
		if free == 0 {
			continue
		}
		slot := slotOf(free)
		s[at].entries[slot].Store(e) // before the tag, so that readers of the tag find it
		s[at].tags.Store(withTag(tags, slot, tag))
		return tags>>(slot*tagSize)&0xff == tagEmpty
	}
}

func withTag(tags uint64, slot int, tag uint64) uint64 {
	return tags&^(0xff<<(slot*tagSize)) | tag<<(slot*tagSize)
}

func (t *table[T, K, E]) replace(old, e E) {
	s := t.slots()
	at, slot := s.where(old.hash(), old)
	s[at].entries[slot].Store(e)
}

func (t *table[T, K, E]) remove(e E) {
	s := t.slots()
	at, slot := s.where(e.hash(), e)
	tags := s[at].tags.Load()
	tag := uint64(tagRemoved)
	if hasEmpty(tags) {
		tag = tagEmpty // lookups do not probe beyond this group
		t.used--
	}
	s[at].tags.Store(withTag(tags, slot, tag))
	s[at].entries[slot].Store(nil)
	t.live--
}

func hasEmpty(tags uint64) bool { return matches(tags, tagEmpty) != 0 }

// grow allocates slots for 1.5 times the entries, and drops removed ones.
func (t *table[T, K, E]) grow() groups[T] {
	s := make(groups[T], t.live*3/2/groupSize+1)
	for e := range t.all {
		s.put(e.hash(), e)
	}
	t.used = t.live
	t.current.Store(&s)
	return s
}

// all yields the entries; entries that stay during the iteration are yielded once. Writers may be concurrent.
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
