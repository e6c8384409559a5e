package customresource

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// stateKey names an object's state: a resource version is written once.
type stateKey struct {
	uid             types.UID
	resourceVersion string
}

func keyOf(m metav1.Object) stateKey {
	return stateKey{uid: m.GetUID(), resourceVersion: m.GetResourceVersion()}
}

// memory remembers decoded objects, up to a number. Beyond it, it forgets any:
// a list that is longer than the memory would leave nothing of use to the next
// list if it forgot the oldest.
type memory struct {
	limit int

	mu     sync.RWMutex
	states map[stateKey]*unstructured.Unstructured
}

func newMemory(limit int) *memory {
	return &memory{limit: limit, states: map[stateKey]*unstructured.Unstructured{}}
}

// recall returns what is remembered of a state, or nil. Nobody may change it.
func (m *memory) recall(key stateKey) *unstructured.Unstructured {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.states[key]
}

// remember keeps u, which nobody may change any more.
func (m *memory) remember(key stateKey, u *unstructured.Unstructured) {
	if key.uid == "" || key.resourceVersion == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.states) >= m.limit {
		for other := range m.states {
			delete(m.states, other)
			break
		}
	}
	m.states[key] = u
}

// encodings remembers the JSON of objects as a view shows them, of each the
// state that was listed last. All views share an allowance of bytes.
type encodings struct {
	allowance *atomic.Int64 // what is left

	mu       sync.RWMutex
	byUID    map[types.UID]encoding
	lastUsed time.Time
	closed   bool
}

type encoding struct {
	resourceVersion string
	data            json.RawMessage
}

func newEncodings(allowance *atomic.Int64) *encodings {
	return &encodings{allowance: allowance, byUID: map[types.UID]encoding{}}
}

// recall returns the JSON of a state, or nil. Nobody may change it.
func (e *encodings) recall(key stateKey) json.RawMessage {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if known, ok := e.byUID[key.uid]; ok && known.resourceVersion == key.resourceVersion {
		return known.data
	}
	return nil
}

// remember keeps the JSON of a state. If the allowance is used up it forgets
// others of the same view, any: to forget the oldest would leave nothing of use
// to the next list.
func (e *encodings) remember(key stateKey, data json.RawMessage) {
	if key.uid == "" || key.resourceVersion == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.dropLocked(key.uid)
	size := int64(len(data))
	for e.allowance.Add(-size) < 0 {
		e.allowance.Add(size)
		if len(e.byUID) == 0 {
			return
		}
		for other := range e.byUID {
			e.dropLocked(other)
			break
		}
	}
	e.byUID[key.uid] = encoding{resourceVersion: key.resourceVersion, data: data}
}

func (e *encodings) dropLocked(uid types.UID) {
	if known, ok := e.byUID[uid]; ok {
		e.allowance.Add(int64(len(known.data)))
		delete(e.byUID, uid)
	}
}

// used notes that somebody lists.
func (e *encodings) used(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastUsed = now
}

// forget forgets everything, unless somebody has listed since before.
func (e *encodings) forget(before time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.lastUsed.After(before) {
		e.forgetLocked()
	}
}

// close forgets everything, for good.
func (e *encodings) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.forgetLocked()
}

func (e *encodings) forgetLocked() {
	for _, known := range e.byUID {
		e.allowance.Add(int64(len(known.data)))
	}
	if len(e.byUID) > 0 {
		e.byUID = map[types.UID]encoding{}
	}
}
