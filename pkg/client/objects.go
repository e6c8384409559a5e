package client

import "hash/maphash"

// objects are the objects of one logical cluster, at least one. Many resources have one object per logical
// cluster, which is stored in place.
type objects[K hashable, T Object] struct {
	key     K
	one     T
	several *several[K, T]
}

const few = 16

// several are two or more objects. Up to few are found by the hashes of their names, which are adjacent in memory:
// a map would take 50% more memory and more time. A map is used for more than that.
type several[K hashable, T Object] struct {
	hashes  [few]uint32
	entries []keyed[K, T]
	many    map[K]T
}

type keyed[K hashable, T Object] struct {
	key K
	obj T
}

var seed = maphash.MakeSeed()

// hashable is a key with a hash that distinguishes nearly all keys.
type hashable interface {
	comparable
	hash() uint32
}

func (k Key) hash() uint32 { return k.local().hash() }

func (l local) hash() uint32 {
	return uint32(maphash.String(seed, l.name)) //nolint:gosec // a part of it
}

func (o *objects[K, T]) len() int {
	if o.several == nil {
		return 1
	}
	return len(o.several.entries) + len(o.several.many)
}

func (o *objects[K, T]) get(key K) (obj T, found bool) {
	switch s := o.several; {
	case s == nil:
		if key == o.key {
			return o.one, true
		}
	case s.many != nil:
		obj, found = s.many[key]
	default:
		if at := s.find(key); at >= 0 {
			return s.entries[at].obj, true
		}
	}
	return obj, found
}

// set adds or replaces an object. The key is replaced, too, because strings of the old object would keep its
// decoded list in memory.
func (o *objects[K, T]) set(key K, obj T) {
	switch {
	case o.several != nil:
		o.several.set(key, obj)
	case key == o.key:
		o.key, o.one = key, obj
	default:
		s := &several[K, T]{}
		s.set(o.key, o.one)
		s.set(key, obj)
		*o = objects[K, T]{several: s}
	}
}

// remove removes an object that is not the only one.
func (o *objects[K, T]) remove(key K) {
	if o.several.remove(key); o.len() > 1 {
		return
	}
	for key, obj := range o.all {
		*o = objects[K, T]{key: key, one: obj}
		return
	}
}

func (o *objects[K, T]) all(visit func(K, T) bool) {
	s := o.several
	if s == nil {
		visit(o.key, o.one)
		return
	}
	for _, e := range s.entries {
		if !visit(e.key, e.obj) {
			return
		}
	}
	for l, obj := range s.many {
		if !visit(l, obj) {
			return
		}
	}
}

func (s *several[K, T]) find(key K) int {
	hash := key.hash()
	for i := range s.entries {
		if s.hashes[i] == hash && s.entries[i].key == key {
			return i
		}
	}
	return -1
}

func (s *several[K, T]) set(key K, obj T) {
	if s.many == nil {
		if at := s.find(key); at >= 0 {
			s.entries[at] = keyed[K, T]{key, obj}
			return
		}
		if len(s.entries) < few {
			s.add(keyed[K, T]{key, obj})
			return
		}
		s.many = make(map[K]T, few+1)
		for _, e := range s.entries {
			s.many[e.key] = e.obj
		}
		s.entries = nil
	}
	delete(s.many, key) // assigning to an existing key would retain the old key
	s.many[key] = obj
}

// add adds an entry. The spare capacity is small, because most logical clusters will not have more objects.
func (s *several[K, T]) add(e keyed[K, T]) {
	n := len(s.entries)
	if n == cap(s.entries) {
		capacity := 2
		if n > 0 {
			capacity = min(n+4, few)
		}
		s.entries = append(make([]keyed[K, T], 0, capacity), s.entries...)
	}
	s.hashes[n], s.entries = e.key.hash(), append(s.entries, e)
}

func (s *several[K, T]) remove(key K) {
	if s.many != nil {
		delete(s.many, key)
		return
	}
	if at := s.find(key); at >= 0 {
		last := len(s.entries) - 1
		s.hashes[at], s.entries[at] = s.hashes[last], s.entries[last]
		s.entries[last] = keyed[K, T]{}
		s.entries = s.entries[:last]
	}
}
