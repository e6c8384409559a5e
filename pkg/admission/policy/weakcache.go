package policy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"weak"
)

// weakCache caches values by their input as long as they are in use, so that policies that many logical
// clusters have in common are compiled once.
type weakCache[V any] struct {
	mu     sync.Mutex
	values map[digest]weak.Pointer[V]
}

type digest [sha256.Size]byte

func newWeakCache[V any]() *weakCache[V] { return &weakCache[V]{values: map[digest]weak.Pointer[V]{}} }

// get returns the value for a name and a specification. The name is part of the key because metrics and
// messages contain it.
func (s *weakCache[V]) get(name string, spec any, build func() V) (*V, error) {
	text, err := json.Marshal([]any{name, spec})
	if err != nil {
		return nil, fmt.Errorf("encoding the specification: %w", err)
	}
	key := digest(sha256.Sum256(text))
	if value := s.find(key); value != nil {
		return value, nil
	}
	// Build without the lock, because compiling takes milliseconds. If two requests build concurrently, the
	// first result is used.
	made := new(V)
	*made = build()
	s.mu.Lock()
	defer s.mu.Unlock()
	if value := s.values[key].Value(); value != nil {
		return value, nil
	}
	s.values[key] = weak.Make(made)
	runtime.AddCleanup(made, s.remove, key)
	return made, nil
}

func (s *weakCache[V]) find(key digest) *V {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[key].Value()
}

// remove removes the entry of a collected value unless it has been replaced.
func (s *weakCache[V]) remove(key digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values[key].Value() == nil {
		delete(s.values, key)
	}
}
