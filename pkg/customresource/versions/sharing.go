package versions

import (
	"hash/maphash"
	"maps"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// sharedBytes bounds what a sharer keeps alive by itself, in each of two generations.
const sharedBytes = 4 << 20

// sharer has objects of watch caches share what they have in common. Objects that the
// same programs write differ in little: most of what a decoded one takes in memory are
// small maps, above all those of its managed fields, that many others have, too.
//
// It knows the parts that objects had lately, in two generations: when the younger one
// is full, what only the older one has is forgotten. Nobody may change an object in a
// watch cache, and so nobody changes what is shared.
type sharer struct {
	seed maphash.Seed

	mu         sync.Mutex
	young, old map[uint64]any
	bytes      int64 // of young
	most       int64
}

func newSharer(bytes int64) *sharer {
	return &sharer{seed: maphash.MakeSeed(), young: map[uint64]any{}, most: bytes}
}

// object has an object share what is below its fields. Metadata differ, and are
// changed after an object was decoded: of them the entries of managed fields only, which
// are as a whole the same in objects that were written in the same second.
func (s *sharer) object(object map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, value := range object {
		if name != "metadata" {
			object[name], _ = s.shareLocked(value)
		}
	}
	metadata, _ := object["metadata"].(map[string]any)
	managed, _ := metadata["managedFields"].([]any)
	for i, entry := range managed {
		managed[i], _ = s.shareLocked(entry)
	}
}

// attributes is attributesOf for a watch cache, which keeps them of each state of each object.
func (s *sharer) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	l, f, err := attributesOf(obj)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.textsLocked(l), s.textsLocked(f), nil
}

// textsLocked returns a map equal to texts that others may have.
func (s *sharer) textsLocked(texts map[string]string) map[string]string {
	if len(texts) == 0 {
		return texts
	}
	hash, bytes := uint64(3), int64(48+32*max(8, len(texts)))
	for key, text := range texts {
		hash += maphash.Comparable(s.seed, [2]string{key, text})
		bytes += int64(len(key) + len(text))
	}
	if bytes > s.most/sampled {
		return texts
	}
	known, ok := s.knownLocked(hash, texts, bytes)
	if shared, same := known.(map[string]string); ok && same && maps.Equal(shared, texts) {
		return shared
	}
	return texts
}

// shareLocked returns a value equal to value that others may have, and its hash.
func (s *sharer) shareLocked(value any) (shared any, hash uint64) {
	const word, entry = 8, 40 // as bytesOf
	var bytes int64
	switch v := value.(type) {
	case map[string]any:
		hash, bytes = 1, int64(6*word+entry*max(8, len(v)))
		for key, item := range v {
			below, h := s.shareLocked(item)
			v[key] = below
			// The order of keys does not count.
			hash += maphash.Comparable(s.seed, [2]uint64{maphash.String(s.seed, key), h})
			bytes += int64(len(key)) + textOf(item)
		}
	case []any:
		hash, bytes = 2, int64(3*word)
		for i, item := range v {
			below, h := s.shareLocked(item)
			v[i] = below
			hash = maphash.Comparable(s.seed, [2]uint64{hash, h})
			bytes += 2*word + textOf(item)
		}
	case string:
		return value, maphash.String(s.seed, v)
	default: // numbers, booleans and nil
		return value, maphash.Comparable(s.seed, v)
	}
	if bytes > s.most/sampled {
		return value, hash // it would drive out too much else
	}
	known, ok := s.knownLocked(hash, value, bytes)
	// What is below is shared already, so that this does not look far.
	if ok && reflect.DeepEqual(known, value) {
		return known, hash
	}
	return value, hash
}

// textOf is how many bytes a value takes beside what is kept by itself.
func textOf(value any) int64 {
	text, _ := value.(string)
	return int64(len(text))
}

// knownLocked returns what has a hash, and whether anything had: otherwise it is value from
// now on.
func (s *sharer) knownLocked(hash uint64, value any, bytes int64) (known any, ok bool) {
	if known, ok = s.young[hash]; ok {
		return known, true
	}
	if known, ok = s.old[hash]; !ok {
		known = value
	}
	s.keepLocked(hash, known, bytes)
	return known, ok
}

func (s *sharer) keepLocked(hash uint64, value any, bytes int64) {
	if s.bytes += bytes; s.bytes > s.most {
		s.old, s.young, s.bytes = s.young, map[uint64]any{}, bytes
	}
	s.young[hash] = value
}
