package packed

import (
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// layoutBytes and textBytes limit the cached layouts and strings of a Packer, in each of two generations.
	layoutBytes, textBytes = 2 << 20, 2 << 20
	// longText is the length from which strings are not interned, because they are rarely equal.
	longText = 128
)

// Packer packs objects, and shares layouts and strings with objects packed recently. It can be used concurrently.
type Packer struct {
	seed maphash.Seed

	mu      sync.Mutex
	layouts recent[uint64, *layout]
	texts   recent[string, any]
	maps    recent[uint64, map[string]string]
	scratch []any
}

// NewPacker returns an empty Packer.
func NewPacker() *Packer {
	return newPacker(layoutBytes, textBytes)
}

func newPacker(layouts, texts int) *Packer {
	return &Packer{
		seed:    maphash.MakeSeed(),
		layouts: newRecent[uint64, *layout](layouts),
		texts:   newRecent[string, any](texts),
		maps:    newRecent[uint64, map[string]string](texts),
	}
}

// Pack packs an object and takes ownership of it.
func (p *Packer) Pack(u *unstructured.Unstructured) *Object {
	o := &Object{}
	metadata, _ := u.Object["metadata"].(map[string]any)
	if o.resourceVersion, _ = metadata["resourceVersion"].(string); o.resourceVersion != "" {
		delete(metadata, "resourceVersion") // it is unique, and is set after an object was decoded
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var values []any
	o.layout, values = p.layoutLocked(u.Object)
	o.values = make([]any, len(values))
	for i, value := range values {
		o.values[i] = p.textLocked(value)
	}
	clear(values)
	p.scratch = values[:0]
	return o
}

// layoutLocked returns the layout of an object, and its values, which are valid while the lock is held.
func (p *Packer) layoutLocked(object map[string]any) (*layout, []any) {
	if known, ok := p.layouts.get(p.hashOf(object)); ok {
		// Only the hash may be equal.
		if values, is := known.appendValues(p.scratch[:0], object); is {
			return known, values
		}
	}
	l, _ := p.buildLocked(object)
	values, _ := l.appendValues(p.scratch[:0], object)
	return l, values
}

// buildLocked returns a new layout, and the same hash as hashOf.
func (p *Packer) buildLocked(value any) (*layout, uint64) {
	var l *layout
	hash := plainHash
	switch v := value.(type) {
	case map[string]any:
		l, hash = newObject(len(v)), objectHash
		for _, name := range slices.Sorted(maps.Keys(v)) {
			field, below := p.buildLocked(v[name])
			l.names, l.starts = append(l.names, name), append(l.starts, l.values)
			l.addItem(field)
			hash += p.fieldHash(name, below)
		}
	case []any:
		l, hash = newList(len(v)), listHash
		for _, item := range v {
			item, below := p.buildLocked(item)
			l.addItem(item)
			hash = itemHash(hash, below)
		}
	default:
		return nil, hash
	}
	l.end()
	if known, ok := p.layouts.get(hash); ok && known.equal(l) {
		return known, hash
	}
	p.layouts.put(hash, l, l.bytes())
	return l, hash
}

// Values with the same layout have the same hash, independent of the order of fields.
const (
	objectHash, listHash, plainHash uint64 = 0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb
	hashFactor                      uint64 = 0xff51afd7ed558ccd
)

func (p *Packer) fieldHash(name string, below uint64) uint64 {
	return (maphash.String(p.seed, name) ^ bits.RotateLeft64(below, 17)) * hashFactor
}

func itemHash(before, below uint64) uint64 {
	return (bits.RotateLeft64(before, 23) ^ below) * hashFactor
}

func (p *Packer) hashOf(value any) uint64 {
	switch v := value.(type) {
	case map[string]any:
		hash := objectHash
		for name, field := range v {
			hash += p.fieldHash(name, p.hashOf(field))
		}
		return hash
	case []any:
		hash := listHash
		for _, item := range v {
			hash = itemHash(hash, p.hashOf(item))
		}
		return hash
	default:
		return plainHash
	}
}

// textLocked returns an interned string, or any other value unchanged.
func (p *Packer) textLocked(value any) any {
	text, ok := value.(string)
	if !ok || len(text) > longText {
		return value
	}
	if known, ok := p.texts.get(text); ok {
		return known
	}
	const entry = 64
	p.texts.put(text, value, entry+len(text))
	return value
}

// Texts returns an interned map, which must not be changed.
func (p *Packer) Texts(texts map[string]string) map[string]string {
	if len(texts) == 0 {
		return texts
	}
	hash, bytes := uint64(0), 48+32*max(8, len(texts))
	for key, text := range texts {
		hash += maphash.Comparable(p.seed, [2]string{key, text})
		bytes += len(key) + len(text)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.maps.get(hash); ok && maps.Equal(known, texts) {
		return known
	}
	p.maps.put(hash, texts, bytes)
	return texts
}

// recent is a cache of recently used values, in two generations: if the younger one is full, it replaces the older one.
type recent[K comparable, V any] struct {
	young, old  map[K]V
	bytes, most int // of young
}

func newRecent[K comparable, V any](most int) recent[K, V] {
	return recent[K, V]{young: map[K]V{}, most: most}
}

func (r *recent[K, V]) get(key K) (V, bool) {
	if known, ok := r.young[key]; ok {
		return known, true
	}
	known, ok := r.old[key]
	if ok {
		const moved = 64 // approximately
		r.put(key, known, moved)
	}
	return known, ok
}

// put caches a value of a size in bytes, unless it would evict too many others.
func (r *recent[K, V]) put(key K, value V, bytes int) {
	const parts = 16
	if bytes > r.most/parts {
		return
	}
	if r.bytes += bytes; r.bytes > r.most {
		r.old, r.young, r.bytes = r.young, map[K]V{}, bytes
	}
	r.young[key] = value
}
