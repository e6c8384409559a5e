package rbac

// fewEntries is the maximum number of entries in the slice.
const fewEntries = 4

// small is a map for logical clusters with few entries. Up to fewEntries are in a slice, because a Go map
// takes up to seven hundred bytes for the first entry. The zero value is ready to use.
type small[K comparable, V any] struct {
	few  []entry[K, V]
	many map[K]V
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func (s *small[K, V]) len() int { return len(s.few) + len(s.many) }

// find returns the index in few, or -1.
func (s *small[K, V]) find(key K) int {
	for i := range s.few {
		if s.few[i].key == key {
			return i
		}
	}
	return -1
}

// get returns the zero value if there is no entry.
func (s *small[K, V]) get(key K) (value V) {
	if s.many != nil {
		return s.many[key]
	}
	if at := s.find(key); at >= 0 {
		value = s.few[at].value
	}
	return value
}

func (s *small[K, V]) set(key K, value V) {
	at := s.find(key)
	switch {
	case s.many != nil:
		s.many[key] = value
	case at >= 0:
		s.few[at].value = value
	case len(s.few) < fewEntries:
		s.few = append(s.few, entry[K, V]{key, value})
	default:
		s.many = make(map[K]V, fewEntries+1)
		for _, e := range s.few {
			s.many[e.key] = e.value
		}
		s.many[key], s.few = value, nil
	}
}

func (s *small[K, V]) remove(key K) {
	delete(s.many, key)
	if at := s.find(key); at >= 0 {
		last := len(s.few) - 1
		s.few[at] = s.few[last]
		s.few[last] = entry[K, V]{}
		s.few = s.few[:last]
	}
}
