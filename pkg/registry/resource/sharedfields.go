package resource

import (
	"hash/maphash"
	"maps"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// rememberedSets is how many sets of fields are remembered.
	rememberedSets = 64
	// sharedFields and sharedBytes are how many fields a set has at most that is remembered, and
	// how long their values are together: Events, which have more, are hardly ever alike.
	sharedFields, sharedBytes = 3, 256
)

// sharedAttrs has objects share the fields that say the same, in logical clusters that have objects of
// the same names: the watch cache keeps them of each object, three hundred bytes each.
func sharedAttrs(attrs storage.AttrFunc) storage.AttrFunc {
	known := &fieldSets{seed: maphash.MakeSeed()}
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := attrs(obj)
		return l, known.share(f), err
	}
}

// fieldSets are those that were of use last, each where its hash says.
type fieldSets struct {
	seed maphash.Seed
	sets [rememberedSets]atomic.Pointer[fields.Set]
}

// share returns a set equal to f that others may have, and that nobody may change.
func (s *fieldSets) share(f fields.Set) fields.Set {
	if len(f) > sharedFields {
		return f
	}
	hash, bytes := uint64(0), 0
	for field, value := range f {
		hash += maphash.Comparable(s.seed, [2]string{field, value})
		bytes += len(value)
	}
	if bytes > sharedBytes {
		return f
	}
	place := &s.sets[hash%rememberedSets]
	if known := place.Load(); known != nil && maps.Equal(*known, f) {
		return *known
	}
	place.Store(&f)
	return f
}
