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
	rememberedSets = 64
	// sharedFields and sharedBytes limit shared sets, because larger ones, e.g. those of Events, are rarely equal.
	sharedFields, sharedBytes = 3, 256
)

// sharedAttrs makes objects share equal sets of fields, e.g. those of objects with the same name in several logical
// clusters. The watch cache stores a set for each object, with about 300 bytes.
func sharedAttrs(attrs storage.AttrFunc) storage.AttrFunc {
	sets := &fieldSets{seed: maphash.MakeSeed()}
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := attrs(obj)
		return l, sets.share(f), err
	}
}

// fieldSets contains recently used sets, indexed by their hash.
type fieldSets struct {
	seed maphash.Seed
	sets [rememberedSets]atomic.Pointer[fields.Set]
}

// share returns a set equal to f that may be shared and must not be changed.
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
	slot := &s.sets[hash%rememberedSets]
	if set := slot.Load(); set != nil && maps.Equal(*set, f) {
		return *set
	}
	slot.Store(&f)
	return f
}
