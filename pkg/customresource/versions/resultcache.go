package versions

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// stateKey identifies the state of an object, because a resource version is written only once.
type stateKey struct {
	uid             types.UID
	resourceVersion string
	// claims are the labels of permission claims that reads add. They change without a write.
	claims string
}

func keyOf(o *packed.Object) stateKey {
	return stateKey{uid: o.GetUID(), resourceVersion: o.GetResourceVersion(), claims: claimsOn(o)}
}

// claimsOn returns the claim labels of an object as a string.
func claimsOn(o *packed.Object) string {
	if !o.Field("metadata").Field("labels").HasPrefix(multitenant.ClaimLabelPrefix) {
		return ""
	}
	var shown []string
	for key, value := range o.GetLabels() {
		if strings.HasPrefix(key, multitenant.ClaimLabelPrefix) {
			shown = append(shown, key+"="+value)
		}
	}
	slices.Sort(shown)
	return strings.Join(shown, ",")
}

// sampleSize is the number of caches among which the largest is evicted from.
const sampleSize = 16

// budget limits the bytes of several caches together. A large cache evicts entries first, so that a busy cache
// does not displace the others.
type budget struct {
	mu        sync.Mutex
	limit     int64
	available int64
	caches    map[evictable]struct{}
	// victim is the cache that evicted last, which is most likely still the largest.
	victim evictable
}

type evictable interface {
	size() int64
	// evict removes at least so many bytes, if it has them, and returns the number of removed bytes.
	evict(bytes int64) int64
}

func newBudget(bytes int64) *budget {
	return &budget{limit: bytes, available: bytes, caches: map[evictable]struct{}{}}
}

// reserve reserves bytes, evicting others if necessary, and reports whether it succeeded. The caller must not
// hold the lock of a cache.
func (b *budget) reserve(bytes int64) bool {
	if bytes > b.limit/sampleSize {
		return false // it would evict too many others
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.available -= bytes
	for b.available < 0 {
		v := b.largestLocked()
		if v == nil {
			b.available += bytes
			return false
		}
		b.available += v.evict(max(v.size()/sampleSize, -b.available))
		b.victim = v
	}
	return true
}

// largestLocked returns the largest of some caches, or nil if all are empty. The largest has at least its
// share of the budget, so that caches below their share are not evicted from.
func (b *budget) largestLocked() evictable {
	var largest evictable
	most, looked := int64(0), 0
	share := b.limit / int64(max(1, len(b.caches)))
	if b.victim != nil {
		if most = b.victim.size(); most > 0 {
			largest = b.victim
		}
	}
	for m := range b.caches {
		if held := m.size(); held > most {
			largest, most = m, held
		}
		if looked++; looked >= sampleSize && most >= share {
			break
		}
	}
	return largest
}

func (b *budget) release(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.available += bytes
}

// resultCache caches one value for the last state of each object, within a budget. It evicts arbitrary
// entries: evicting the oldest would leave nothing useful for the next list.
type resultCache[T any] struct {
	budget *budget
	bytes  atomic.Int64
	idle   atomic.Int32 // calls of evictIdle since the last hit

	mu     sync.RWMutex
	byUID  map[types.UID]cachedResult[T]
	closed bool
}

type cachedResult[T any] struct {
	state stateKey
	value T
	bytes int64
}

func newResultCache[T any](b *budget) *resultCache[T] {
	m := &resultCache[T]{budget: b, byUID: map[types.UID]cachedResult[T]{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.caches[m] = struct{}{}
	return m
}

// get returns the value of a state, which must not be changed.
func (m *resultCache[T]) get(key stateKey) (T, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	known, ok := m.byUID[key.uid]
	if !ok || known.state != key {
		var none T
		return none, false
	}
	if m.idle.Load() != 0 {
		m.idle.Store(0)
	}
	return known.value, true
}

// put caches a value of the given size, which must not be changed afterwards, and reports whether it is cached.
func (m *resultCache[T]) put(key stateKey, value T, bytes int64) bool {
	if key.uid == "" || key.resourceVersion == "" || !m.budget.reserve(bytes) {
		return false
	}
	m.mu.Lock()
	freed, kept := bytes, !m.closed
	if kept {
		m.idle.Store(0)
		freed = m.byUID[key.uid].bytes
		m.byUID[key.uid] = cachedResult[T]{state: key, value: value, bytes: bytes}
		m.bytes.Add(bytes - freed)
	}
	m.mu.Unlock()
	m.budget.release(freed)
	return kept
}

func (m *resultCache[T]) size() int64 { return m.bytes.Load() }

func (m *resultCache[T]) evict(bytes int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	freed := int64(0)
	for uid, known := range m.byUID {
		if freed >= bytes {
			break
		}
		freed += known.bytes
		delete(m.byUID, uid)
	}
	m.bytes.Add(-freed)
	return freed
}

// evictIdle removes everything if there was no hit since three calls ago.
func (m *resultCache[T]) evictIdle() {
	if m.idle.Add(1) > 2 {
		m.clear(false)
	}
}

func (m *resultCache[T]) close() {
	m.clear(true)
	b := m.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.caches, m)
	if b.victim == evictable(m) {
		b.victim = nil
	}
}

func (m *resultCache[T]) clear(permanently bool) {
	m.mu.Lock()
	m.closed = m.closed || permanently
	freed := m.bytes.Swap(0)
	if len(m.byUID) > 0 {
		m.byUID = map[types.UID]cachedResult[T]{}
	}
	m.mu.Unlock()
	m.budget.release(freed)
}

// bytesOf returns an upper estimate of the memory of an object's content; strings in it may be shared.
func bytesOf(value any) int64 {
	const word, of, entry = 8, 16, 40 // of is an interface or a string
	switch v := value.(type) {
	case map[string]any:
		sum := int64(6*word + entry*max(8, len(v)))
		for key, item := range v {
			sum += int64(len(key)) + bytesOf(item)
		}
		return sum
	case []any:
		sum := int64(3 * word)
		for _, item := range v {
			sum += of + bytesOf(item)
		}
		return sum
	case string:
		return of + int64(len(v))
	default:
		return word
	}
}
