package client

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// Save returns all objects as JSON. It fails unless the informer is Current and connected.
func (i *Informer[T]) Save() ([]json.RawMessage, error) {
	if !i.Current() {
		return nil, fmt.Errorf("%w: informer %s has not synced", ErrIncomplete, i.name)
	}
	if err := i.LastError(); err != nil {
		return nil, fmt.Errorf("%w: informer %s: %w", ErrIncomplete, i.name, err)
	}
	objs := i.store.list()
	saved := make([]json.RawMessage, 0, len(objs))
	for _, obj := range objs {
		text, err := json.Marshal(obj)
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", i.KeyOf(obj), err)
		}
		saved = append(saved, text)
	}
	return saved, nil
}

// Restore makes an informer that has not run start with the result of Save, synced but not Current. Objects that
// no longer exist are removed when the server responds. If it fails, the informer is empty.
func (i *Informer[T]) Restore(saved []json.RawMessage) error {
	objs := make([]T, 0, len(saved))
	for _, text := range saved {
		obj, ok := reflect.TypeAssert[T](reflect.New(reflect.TypeFor[T]().Elem()))
		if !ok {
			return fmt.Errorf("%w: %s", errWrongType, reflect.TypeFor[T]())
		}
		if err := json.Unmarshal(text, obj); err != nil {
			return fmt.Errorf("decoding an object of informer %s: %w", i.name, err)
		}
		objs = append(objs, obj)
	}
	for _, obj := range objs {
		if i.options.Keep != nil && !i.options.Keep(obj) {
			continue
		}
		key := i.KeyOf(obj)
		i.mu.Lock()
		if i.guard.Put(key, obj, "", obj.GetResourceVersion()) {
			i.upsert(key, obj)
		}
		i.mu.Unlock()
	}
	i.markSynced()
	return nil
}
