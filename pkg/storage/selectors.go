package storage

import (
	"fmt"
	"hash/maphash"
	"maps"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// isSharded reports whether a request selects a range of the objects.
func isSharded(pred *storage.SelectionPredicate) bool {
	return pred.ShardSelector != nil && !pred.ShardSelector.Empty() &&
		utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch)
}

// strict fails a list if an object cannot be matched. etcd3 would drop it silently, and the watch cache omits its name.
type strict struct {
	err error
}

func (s *strict) fail(obj runtime.Object, err error) error {
	name := "an object"
	if object, metaErr := meta.Accessor(obj); metaErr == nil {
		name = fmt.Sprintf("%s/%s", object.GetNamespace(), object.GetName())
	}
	if err = fmt.Errorf("cannot match %s: %w", name, err); s.err == nil {
		s.err = err
	}
	return err
}

type strictSelector struct {
	sharding.Selector

	strict *strict
}

func (s strictSelector) Matches(obj runtime.Object) (bool, error) {
	matches, err := s.Selector.Matches(obj)
	if err != nil {
		err = s.strict.fail(obj, err)
	}
	return matches, err
}

func makeStrict(pred *storage.SelectionPredicate) *strict {
	s := &strict{}
	if isSharded(pred) {
		pred.ShardSelector = strictSelector{pred.ShardSelector, s}
	}
	if getAttrs := pred.GetAttrs; getAttrs != nil {
		pred.GetAttrs = func(obj runtime.Object) (l labels.Set, f fields.Set, err error) {
			if l, f, err = getAttrs(obj); err != nil {
				err = s.fail(obj, err)
			}
			return l, f, err
		}
	}
	return s
}

// Attributes compute labels and fields for the selectors of lists and watches, in addition to those that the watch
// cache keeps for every object. They are computed on demand, and only for objects in the scope of the request. They
// can be used concurrently.
type Attributes struct {
	// Get returns the attributes of an object. Events wait for it: it must be quick and must not block.
	Get storage.AttrFunc
}

// Select returns options with selectors that match the attributes. Watches with the same pointer share an event's.
func (a *Attributes) Select(opts storage.ListOptions) storage.ListOptions {
	if opts.Predicate.Field == nil {
		opts.Predicate.Field = fields.Everything()
	}
	opts.Predicate.Field = attributesSelector{Selector: opts.Predicate.Field, attributes: a}
	opts.Predicate.GetAttrs = a.Get
	return opts
}

// attributesSelector carries attributes through storage.Interface.
type attributesSelector struct {
	fields.Selector

	attributes *Attributes
}

func takeAttributes(pred *storage.SelectionPredicate) *Attributes {
	carrier, ok := pred.Field.(attributesSelector)
	if !ok {
		return nil
	}
	pred.Field = carrier.Selector
	return carrier.attributes
}

const (
	rememberedSets = 4096
	// sharedFields and sharedBytes limit shared sets, because larger ones, e.g. those of Events, are rarely equal.
	sharedFields, sharedBytes = 3, 256
)

// fieldSets makes objects share equal sets of fields, e.g. those of objects with the same name in several logical
// clusters. The watch cache stores a set for each object, with about 300 bytes. It contains recent sets, by their hash.
type fieldSets struct {
	seed maphash.Seed
	sets [rememberedSets]atomic.Pointer[fields.Set]
}

func (s *fieldSets) sharing(attrs storage.AttrFunc) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := attrs(obj)
		return l, s.share(f), err
	}
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
	kept := f // so that f does not escape otherwise
	slot.Store(&kept)
	return f
}

func withField(f fields.Set, name, value string) fields.Set {
	return fields.Set(labels.Merge(labels.Set(f), labels.Set{name: value}))
}
