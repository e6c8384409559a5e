package packed

import "slices"

// layout describes the structure of a value: nil is a scalar value, which is stored as it is. It is immutable.
type layout struct {
	// names are the fields of an object, in order; below are the layouts of the fields, or of the items of a
	// list. If all items have the same layout, below contains only the first.
	names  []string
	below  []*layout
	starts []int // index of each field's first value among those of the object
	isList bool
	length int // of a list
	values int // number of all values
}

// size returns the number of values.
func (l *layout) size() int {
	if l == nil {
		return 1
	}
	return l.values
}

// item returns the layout of an item of a list.
func (l *layout) item(i int) *layout {
	if len(l.below) == 1 {
		return l.below[0]
	}
	return l.below[i]
}

// bytes estimates the memory of a layout without those below it.
func (l *layout) bytes() int {
	const own, name, field = 144, 16, 16
	sum := own + len(l.below)*field
	for _, n := range l.names {
		sum += name + len(n)
	}
	return sum
}

// appendValues appends the values of a value, and reports whether it has the layout l.
func (l *layout) appendValues(to []any, value any) ([]any, bool) {
	switch v := value.(type) {
	case map[string]any:
		if l == nil || l.isList || len(v) != len(l.names) {
			return to, false
		}
		for i, name := range l.names {
			field, ok := v[name]
			if !ok {
				return to, false
			}
			if to, ok = l.below[i].appendValues(to, field); !ok {
				return to, false
			}
		}
		return to, true
	case []any:
		if l == nil || !l.isList || len(v) != l.length {
			return to, false
		}
		for i, item := range v {
			var ok bool
			if to, ok = l.item(i).appendValues(to, item); !ok {
				return to, false
			}
		}
		return to, true
	default:
		return append(to, value), l == nil
	}
}

// unpack returns a new value from its parts.
func (l *layout) unpack(values []any) any {
	switch {
	case l == nil:
		return values[0]
	case l.isList:
		list := make([]any, l.length)
		for i := range list {
			item := l.item(i)
			list[i] = item.unpack(values)
			values = values[item.size():]
		}
		return list
	default:
		return l.object(values)
	}
}

func (l *layout) object(values []any) map[string]any {
	object := make(map[string]any, len(l.names))
	for i, name := range l.names {
		object[name] = l.below[i].unpack(values[l.starts[i]:])
	}
	return object
}

// written estimates the length of the JSON.
func (l *layout) written(values []any) int64 {
	const punctuation, other = 4, 8 // quotes, a colon and a comma; numbers etc.
	switch {
	case l == nil:
		if text, ok := values[0].(string); ok {
			return punctuation + int64(len(text))
		}
		return other
	case l.isList:
		sum := int64(punctuation)
		for i := range l.length {
			item := l.item(i)
			sum += item.written(values)
			values = values[item.size():]
		}
		return sum
	default:
		sum := int64(punctuation)
		for i, name := range l.names {
			sum += punctuation + int64(len(name)) + l.below[i].written(values[l.starts[i]:])
		}
		return sum
	}
}

// newObject and newList return layouts to which fields, in order, or items must be added. They may be used
// after end.
func newObject(fields int) *layout {
	return &layout{names: make([]string, 0, fields), below: make([]*layout, 0, fields), starts: make([]int, 0, fields)}
}

func newList(items int) *layout {
	return &layout{isList: true, length: items, below: make([]*layout, 0, items)}
}

func (l *layout) addField(name string, below *layout) {
	l.names, l.starts = append(l.names, name), append(l.starts, l.values)
	l.addItem(below)
}

func (l *layout) addItem(below *layout) {
	l.below = append(l.below, below)
	l.values += below.size()
}

func (l *layout) end() {
	if !l.isList || l.length < 2 {
		return
	}
	for _, below := range l.below {
		if below != l.below[0] {
			return
		}
	}
	l.below = []*layout{l.below[0]}
}

// equal compares layouts. The layouts below them must be identical if they are equal.
func (l *layout) equal(o *layout) bool {
	return l.isList == o.isList && l.length == o.length && slices.Equal(l.names, o.names) && slices.Equal(l.below, o.below)
}
