package client

import "hash/maphash"

// objects are those of one logical cluster, one at least. Of many resources it has no more, so
// that there is nothing else for the only one.
type objects[T Object] struct {
	// key and one are of the only one, unless there are several.
	key     local
	one     T
	several *several[T]
}

// few is how many objects lie side by side.
const few = 16

// several are the objects of a logical cluster that has more than one. A few are found by the hashes of
// their names, which are in one place: a map would take half as much memory again, and longer, since what
// it has lies in several places. There is one of more than that.
type several[T Object] struct {
	hashes  [few]uint32
	entries []keyed[T]
	many    map[local]T
}

type keyed[T Object] struct {
	key local
	obj T
}

// seed is that of the hashes.
var seed = maphash.MakeSeed()

// hash is of what tells objects of one logical cluster apart nearly always.
func (l local) hash() uint32 {
	return uint32(maphash.String(seed, l.name)) //nolint:gosec // a part of it
}

func (o *objects[T]) len() int {
	if o.several == nil {
		return 1
	}
	return len(o.several.entries) + len(o.several.many)
}

func (o *objects[T]) get(key local) (obj T, found bool) {
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

// set adds an object, or another state of one. The key goes with the object: with the strings of
// the old one, it would keep the whole decoded list of that alive.
func (o *objects[T]) set(key local, obj T) {
	switch {
	case o.several != nil:
		o.several.set(key, obj)
	case key == o.key:
		o.key, o.one = key, obj
	default:
		s := &several[T]{}
		s.set(o.key, o.one)
		s.set(key, obj)
		*o = objects[T]{several: s}
	}
}

// remove removes one of the objects, which is not the only one.
func (o *objects[T]) remove(key local) {
	if o.several.remove(key); o.len() > 1 {
		return
	}
	for key, obj := range o.all {
		*o = objects[T]{key: key, one: obj}
		return
	}
}

func (o *objects[T]) all(visit func(local, T) bool) {
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

// find returns where an entry is, or -1.
func (s *several[T]) find(key local) int {
	hash := key.hash()
	for i := range s.entries {
		if s.hashes[i] == hash && s.entries[i].key == key {
			return i
		}
	}
	return -1
}

func (s *several[T]) set(key local, obj T) {
	if s.many == nil {
		if at := s.find(key); at >= 0 {
			s.entries[at] = keyed[T]{key, obj}
			return
		}
		if len(s.entries) < few {
			s.add(keyed[T]{key, obj})
			return
		}
		s.many = make(map[local]T, few+1)
		for _, e := range s.entries {
			s.many[e.key] = e.obj
		}
		s.entries = nil
	}
	delete(s.many, key) // assigning to an existing key would leave that
	s.many[key] = obj
}

// add adds an entry. The room for others is little, as of what most logical clusters have there
// will not be more.
func (s *several[T]) add(e keyed[T]) {
	n := len(s.entries)
	if n == cap(s.entries) {
		room := 2 // which it begins with
		if n > 0 {
			room = min(n+4, few)
		}
		s.entries = append(make([]keyed[T], 0, room), s.entries...)
	}
	s.hashes[n], s.entries = e.key.hash(), append(s.entries, e)
}

func (s *several[T]) remove(key local) {
	if s.many != nil {
		delete(s.many, key)
		return
	}
	if at := s.find(key); at >= 0 {
		last := len(s.entries) - 1
		s.hashes[at], s.entries[at] = s.hashes[last], s.entries[last]
		s.entries[last] = keyed[T]{}
		s.entries = s.entries[:last]
	}
}
