package policy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"weak"
)

// weakCache holds values by what they are made from, for as long as anybody else
// holds them. Policies that a hundred logical clusters have alike are compiled
// once.
type weakCache[V any] struct {
	mu     sync.Mutex
	values map[digest]weak.Pointer[V]
}

type digest [sha256.Size]byte

func newWeakCache[V any]() *weakCache[V] { return &weakCache[V]{values: map[digest]weak.Pointer[V]{}} }

// get returns the value for a name and a specification, made now if nobody has
// it. The name is part of it because metrics and messages carry it.
func (s *weakCache[V]) get(name string, spec any, build func() V) (*V, error) {
	text, err := json.Marshal([]any{name, spec})
	if err != nil {
		return nil, fmt.Errorf("encoding the specification: %w", err)
	}
	key := digest(sha256.Sum256(text))
	if value := s.find(key); value != nil {
		return value, nil
	}
	// Outside of the lock: compiling takes milliseconds, and nobody else's
	// policies should wait for it. If two do it, the first one to finish wins.
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

// remove removes the entry of a value that nobody holds any more, unless there
// is another one by now.
func (s *weakCache[V]) remove(key digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values[key].Value() == nil {
		delete(s.values, key)
	}
}
