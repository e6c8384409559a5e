package customresource

import (
	"sync"

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

// recall returns a copy of what is remembered of a state, or nil.
func (m *memory) recall(key stateKey) *unstructured.Unstructured {
	m.mu.RLock()
	u := m.states[key]
	m.mu.RUnlock()
	if u == nil {
		return nil
	}
	return u.DeepCopy()
}

// remember keeps a copy of u.
func (m *memory) remember(key stateKey, u *unstructured.Unstructured) {
	if key.uid == "" || key.resourceVersion == "" {
		return
	}
	u = u.DeepCopy()
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
