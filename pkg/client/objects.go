package client

import "hash/maphash"

// objects are those of one logical cluster, one at least. Of many resources it has no more, so
// that there is nothing else for the first.
type objects[T Object] struct {
	key  local
	one  T
	more *others[T]
}

// few is how many objects beside the first lie side by side.
const few = 15

// others are the objects of a logical cluster beside the first. A few are found by the hashes of their
// keys, which are in one place: a map would take half as much memory again, and longer, since what it
// has lies in several places. There is one of more than that.
type others[T Object] struct {
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
	return uint32(maphash.String(seed, l.name) ^ maphash.String(seed, l.namespace)>>1) //nolint:gosec // a part of it
}

func (o objects[T]) len() int { return 1 + o.more.len() }

func (o objects[T]) get(key local) (T, bool) {
	if key == o.key {
		return o.one, true
	}
	return o.more.get(key)
}

// with returns the objects with one more, or with another state of one. The key goes with the
// object: with the strings of the old one, it would keep the whole decoded list of that alive.
func (o objects[T]) with(key local, obj T) objects[T] {
	if key == o.key {
		o.key, o.one = key, obj
		return o
	}
	if o.more == nil {
		o.more = &others[T]{}
	}
	o.more.set(key, obj)
	return o
}

// without returns the objects without one of them, which is not the only one.
func (o objects[T]) without(key local) objects[T] {
	if key == o.key {
		for o.key, o.one = range o.more.all {
			break
		}
		key = o.key
	}
	if o.more.remove(key); o.more.len() == 0 {
		o.more = nil
	}
	return o
}

func (o objects[T]) all(visit func(local, T) bool) {
	if visit(o.key, o.one) {
		o.more.all(visit)
	}
}

func (r *others[T]) len() int {
	if r == nil {
		return 0
	}
	return len(r.entries) + len(r.many)
}

// find returns where an entry is, or -1.
func (r *others[T]) find(key local) int {
	hash := key.hash()
	for i := range r.entries {
		if r.hashes[i] == hash && r.entries[i].key == key {
			return i
		}
	}
	return -1
}

func (r *others[T]) get(key local) (obj T, found bool) {
	switch {
	case r == nil:
	case r.many != nil:
		obj, found = r.many[key]
	default:
		if at := r.find(key); at >= 0 {
			return r.entries[at].obj, true
		}
	}
	return obj, found
}

func (r *others[T]) set(key local, obj T) {
	if r.many == nil {
		if at := r.find(key); at >= 0 {
			r.entries[at] = keyed[T]{key, obj}
			return
		}
		if len(r.entries) < few {
			r.add(keyed[T]{key, obj})
			return
		}
		r.many = make(map[local]T, few+1)
		for _, e := range r.entries {
			r.many[e.key] = e.obj
		}
		r.entries = nil
	}
	delete(r.many, key) // assigning to an existing key would leave that
	r.many[key] = obj
}

// add adds an entry. The room for others is little, as of what most logical clusters have there
// will not be more.
func (r *others[T]) add(e keyed[T]) {
	n := len(r.entries)
	if n == cap(r.entries) {
		r.entries = append(make([]keyed[T], 0, min(n+4, few)), r.entries...)
	}
	r.hashes[n], r.entries = e.key.hash(), append(r.entries, e)
}

func (r *others[T]) remove(key local) {
	if r.many != nil {
		delete(r.many, key)
		return
	}
	if at := r.find(key); at >= 0 {
		last := len(r.entries) - 1
		r.hashes[at], r.entries[at] = r.hashes[last], r.entries[last]
		r.entries[last] = keyed[T]{}
		r.entries = r.entries[:last]
	}
}

func (r *others[T]) all(visit func(local, T) bool) {
	if r == nil {
		return
	}
	for _, e := range r.entries {
		if !visit(e.key, e.obj) {
			return
		}
	}
	for l, obj := range r.many {
		if !visit(l, obj) {
			return
		}
	}
}
