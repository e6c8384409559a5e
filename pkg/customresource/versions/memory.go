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

// stateKey names an object's state: a resource version is written once.
type stateKey struct {
	uid             types.UID
	resourceVersion string
	// claims are the labels by which reads show who claims the object, which come and go
	// without a write.
	claims string
}

func keyOf(o *packed.Object) stateKey {
	return stateKey{uid: o.GetUID(), resourceVersion: o.GetResourceVersion(), claims: claimsOn(o)}
}

// claimsOn returns the labels of claims that an object shows, as one text.
func claimsOn(o *packed.Object) string {
	if !o.Value().Field("metadata").Field("labels").HasPrefix(multitenant.ClaimLabelPrefix) {
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

// sampled is how many memories are looked at for one that has much to forget.
const sampled = 16

// budget is how many bytes several memories may hold together. When they are
// used up, a memory that holds much forgets, so that one that is used a lot
// leaves the others their share.
type budget struct {
	mu       sync.Mutex
	limit    int64
	left     int64
	memories map[holder]struct{}
	// victim is the memory that forgot last: most likely still the largest.
	victim holder
}

// holder is a memory as its budget sees it.
type holder interface {
	// held is how many bytes it holds.
	held() int64
	// shed forgets so many bytes or a little more, as far as there are, and
	// returns how many.
	shed(bytes int64) int64
}

func newBudget(bytes int64) *budget {
	return &budget{limit: bytes, left: bytes, memories: map[holder]struct{}{}}
}

// take takes bytes, which others may have to forget, and reports whether it got
// them. The caller must not hold the lock of a memory.
func (b *budget) take(bytes int64) bool {
	if bytes > b.limit/sampled {
		return false // it would drive out too many others
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= bytes
	for b.left < 0 {
		v := b.largestLocked()
		if v == nil {
			b.left += bytes
			return false
		}
		b.left += v.shed(max(v.held()/sampled, -b.left))
		b.victim = v
	}
	return true
}

// largestLocked returns the largest of some memories, or nil if all are empty. One
// of these holds its share of the budget at least, as some memory does when the
// budget is used up: who holds less keeps it.
func (b *budget) largestLocked() holder {
	var largest holder
	most, looked := int64(0), 0
	share := b.limit / int64(max(1, len(b.memories)))
	if b.victim != nil {
		if most = b.victim.held(); most > 0 {
			largest = b.victim
		}
	}
	for m := range b.memories {
		if held := m.held(); held > most {
			largest, most = m, held
		}
		if looked++; looked >= sampled && most >= share {
			break
		}
	}
	return largest
}

func (b *budget) giveBack(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += bytes
}

func (b *budget) join(m holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memories[m] = struct{}{}
}

func (b *budget) leave(m holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.memories, m)
	if b.victim == m {
		b.victim = nil
	}
}

// memory remembers what a view makes of objects, of each the state that was
// remembered last, within a budget. When that is used up it forgets any: to
// forget the oldest would leave nothing of use to the next list.
type memory[T any] struct {
	budget *budget
	bytes  atomic.Int64
	idle   atomic.Int32 // how often evictIdle was called since it was of use

	mu     sync.RWMutex
	byUID  map[types.UID]remembered[T]
	closed bool
}

type remembered[T any] struct {
	state stateKey
	value T
	bytes int64
}

func newMemory[T any](b *budget) *memory[T] {
	m := &memory[T]{budget: b, byUID: map[types.UID]remembered[T]{}}
	b.join(m)
	return m
}

// recall returns what is remembered of a state, and whether anything is. Nobody
// may change it.
func (m *memory[T]) recall(key stateKey) (T, bool) {
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

// remember keeps a value of so many bytes, which nobody may change any more, and reports
// whether it does.
func (m *memory[T]) remember(key stateKey, value T, bytes int64) bool {
	if key.uid == "" || key.resourceVersion == "" || !m.budget.take(bytes) {
		return false
	}
	m.mu.Lock()
	freed, kept := bytes, !m.closed
	if kept {
		m.idle.Store(0)
		freed = m.byUID[key.uid].bytes
		m.byUID[key.uid] = remembered[T]{state: key, value: value, bytes: bytes}
		m.bytes.Add(bytes - freed)
	}
	m.mu.Unlock()
	m.budget.giveBack(freed)
	return kept
}

// held implements holder.
func (m *memory[T]) held() int64 { return m.bytes.Load() }

// shed implements holder.
func (m *memory[T]) shed(bytes int64) int64 {
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

// evictIdle drops everything that was of no use between the last three calls.
func (m *memory[T]) evictIdle() {
	if m.idle.Add(1) > 2 {
		m.clear(false)
	}
}

// close forgets everything, for good.
func (m *memory[T]) close() {
	m.clear(true)
	m.budget.leave(m)
}

func (m *memory[T]) clear(forGood bool) {
	m.mu.Lock()
	m.closed = m.closed || forGood
	freed := m.bytes.Swap(0)
	if len(m.byUID) > 0 {
		m.byUID = map[types.UID]remembered[T]{}
	}
	m.mu.Unlock()
	m.budget.giveBack(freed)
}

// bytesOf estimates what the content of an object takes in memory, from above:
// the text in it may be shared.
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
