package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// guarded implements Guarded.
type guarded[T Object] struct {
	guardedState

	informer *Informer[T] // see informerSink
	scope    Scope
}

// Get implements Guarded.
func (g guarded[T]) Get(key Key) (Object, bool) { return g.informer.store.get(key) }

// All implements Guarded.
func (g guarded[T]) All() iter.Seq2[Key, Object] {
	return func(visit func(Key, Object) bool) {
		g.informer.present(func(key Key, obj T) bool { return visit(key, obj) })
	}
}

// Put implements Guarded.
func (g guarded[T]) Put(key Key, obj Object) {
	if typed, ok := obj.(T); ok {
		g.informer.upsert(key, typed)
	}
}

// Remove implements Guarded.
func (g guarded[T]) Remove(key Key) { g.informer.remove(key, nil) }

// Replace implements Guarded.
func (g guarded[T]) Replace(key Key, obj Object) {
	if typed, ok := obj.(T); ok {
		g.informer.store.set(key, typed)
	}
}

// ListShard implements Guarded.
func (g guarded[T]) ListShard(ctx context.Context, shard string) (map[Key]Object, string, error) {
	source, err := g.informer.sourceAt(Scope{factory: g.scope.factory.Shard(shard), segment: g.scope.segment})
	if err != nil {
		return nil, "", err
	}
	present, opts := map[Key]Object{}, g.informer.selected
	opts.Limit = pageSize
	for {
		page, err := source.list(ctx, opts)
		if err != nil {
			return nil, "", err
		}
		err = meta.EachListItemWithAlloc(page, func(item runtime.Object) error {
			obj, ok := item.(T)
			if !ok {
				return fmt.Errorf("%w: %T", errWrongType, item)
			}
			key := g.informer.KeyOf(obj)
			if g.informer.options.Keep != nil && !g.informer.options.Keep(obj) {
				return nil
			}
			prepared, err := g.informer.prepare(obj)
			present[key] = prepared
			return err
		})
		info, other := meta.ListAccessor(page)
		if err := errors.Join(err, other); err != nil {
			return nil, "", err
		}
		if opts.Continue = info.GetContinue(); opts.Continue == "" {
			return present, info.GetResourceVersion(), nil
		}
	}
}
