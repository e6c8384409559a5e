package client

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Changes counts the changes of what the informer holds.
func (i *Informer[T]) Changes() uint64 { return i.changes.Load() }

// Save returns all that the informer holds, as JSON. It fails unless that is what the
// server has, as far as can be told: the informer is Current, and connected.
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

// Restore has an informer that does not run yet begin with what Save returned, synced
// but not Current. What the server does not have any more goes when the server answers. If
// it fails, the informer has nothing.
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
		if i.options.Keep == nil || i.options.Keep(obj) {
			i.mu.Lock()
			if i.replicas != nil {
				i.replicas.saw(i.KeyOf(obj).Shard, obj.GetResourceVersion())
			}
			i.upsert(i.KeyOf(obj), obj)
			i.mu.Unlock()
		}
	}
	if i.replicas != nil {
		i.replicas.restored()
	}
	i.markSynced()
	return nil
}

// Current returns nil when both sides have been known completely by what their servers
// have, and otherwise an ErrIncomplete: what is missing may be something that was not
// there yet when the view was saved.
func (d *Dual[T]) Current() error {
	if err := d.Complete(); err != nil {
		return err
	}
	if d.others == nil || d.others.Current() {
		return nil
	}
	return fmt.Errorf("%w: informer %s%s has what it had before the start", ErrIncomplete, d.others.Name(), d.others.readFrom())
}

// GetCurrent is Get that says NotFound only if that is so now: what was saved before the
// start may lack an object.
func (d *Dual[T]) GetCurrent(cluster logicalcluster.Name, namespace, name string) (T, error) {
	obj, err := d.Get(cluster, namespace, name)
	if !apierrors.IsNotFound(err) || d.options.Holds(cluster) {
		return obj, err
	}
	if unknown := d.Current(); unknown != nil {
		return obj, unknown
	}
	return d.Get(cluster, namespace, name) // it may have come with what is known since
}
