package client

// indexed are the objects under one value of an index, one at least. Under most values, such as
// paths and owners, there is no more, and a map would take some seven hundred bytes for the only one.
type indexed[T Object] struct {
	// key and one are of the only one, unless there are several.
	key     Key
	one     T
	several map[Key]T
}

func (x *indexed[T]) len() int {
	switch {
	case x == nil:
		return 0
	case x.several == nil:
		return 1
	}
	return len(x.several)
}

func (x *indexed[T]) set(key Key, obj T) {
	switch {
	case x.several != nil:
		x.several[key] = obj
	case key == x.key:
		x.one = obj
	default:
		*x = indexed[T]{several: map[Key]T{x.key: x.one, key: obj}}
	}
}

// remove reports whether that leaves none.
func (x *indexed[T]) remove(key Key) bool {
	if x.several == nil {
		return key == x.key
	}
	delete(x.several, key)
	if len(x.several) == 1 {
		for only, obj := range x.several {
			*x = indexed[T]{key: only, one: obj}
		}
	}
	return false
}

func (x *indexed[T]) list() []T {
	objs := make([]T, 0, x.len())
	switch {
	case x == nil:
	case x.several == nil:
		objs = append(objs, x.one)
	default:
		for _, obj := range x.several {
			objs = append(objs, obj)
		}
	}
	return objs
}
