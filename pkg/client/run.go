package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
)

func newInformer[T Object](scope Scope, gvr schema.GroupVersionResource, options InformerOptions[T], source sourceAt) (*Informer[T], error) {
	at, err := source(scope)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(options.Name, gvr.GroupResource().String()+"@"+scope.String())
	i := &Informer[T]{
		connection:  newConnection(name, at),
		sourceAt:    source,
		gvr:         gvr,
		sharded:     scope.factory.sharded,
		allClusters: scope.segment == request.Wildcard,
		options:     options,
		store:       newStore(options.Indexers),
		guard:       acceptAll{},
	}
	i.handlers = handlers[T]{informer: name, panics: &i.counts.panics, mu: &turn{}, visible: i.present}
	i.onSynced = i.deliveredInitial
	i.pagesOnly = options.DisableWatchList
	i.selected = metav1.ListOptions{LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector}
	i.metrics = scope.factory.metrics
	if options.Ranges != nil {
		i.useRanges(options.Ranges)
	}
	if guard := scope.factory.guard; guard != nil {
		i.guard = guard(guarded[T]{i, i, scope})
		i.before = func(ctx context.Context) error { return i.guard.BeforeList(ctx, i.lastBreak()) }
	}
	return i, nil
}

// Run follows the resource until ctx is done and its goroutines have ended. It fails only if the informer runs already.
func (i *Informer[T]) Run(ctx context.Context) error {
	end, err := i.begin()
	if err != nil {
		return err
	}
	defer end()
	defer i.metrics.watch(i)()
	i.mu.logger.Store(klog.FromContext(ctx))
	var guarding sync.WaitGroup
	defer guarding.Wait()
	guarding.Go(func() { i.guard.Run(ctx) })
	if i.rangeState != nil {
		if source, ok := i.rangeState.source.(loadedRanges); ok {
			defer source.Follow(i.LoadedRanges)()
		}
		for ctx.Err() == nil {
			i.followLoaded(ctx)
		}
	} else {
		i.follow(ctx, &informerSink[T]{informer: i})
	}
	i.wait()
	return nil
}

// MoveTo makes an informer that does not run use another scope, e.g. after the address of a server changed.
func (i *Informer[T]) MoveTo(scope Scope) error {
	if i.sharded != scope.factory.sharded {
		return fmt.Errorf("informer %s cannot move between a shard and a cache server", i.name)
	}
	source, err := i.sourceAt(scope)
	if err != nil {
		return err
	}
	i.state.mu.Lock()
	defer i.state.mu.Unlock()
	if i.state.running {
		return fmt.Errorf("informer %s is running: stop it before you move it", i.name)
	}
	i.source, i.metrics = source, scope.factory.metrics
	i.setResourceVersion("")
	i.current.Store(false)
	return nil
}

func (i *Informer[T]) measure(report func(metric string, value float64, by ...string)) {
	report("objects", float64(i.store.len()))
	report("streams", float64(i.counts.streams.Load()))
	synced := 0.0
	if i.HasSynced() {
		synced = 1
	}
	report("synced", synced)
	if i.rangeState != nil {
		report("filtered", 1, string(i.Filtered()))
		report("discarded_total", float64(i.Discarded()))
	}
	report("events_total", float64(i.counts.events.Load()))
	report("stale_seconds", i.stale().Seconds())
	report("received_bytes_total", float64(i.counts.received.Load()))
	report("relists_total", float64(i.counts.relists.Load()))
	report("handler_panics_total", float64(i.counts.panics.Load()))
}

// Informer returns an informer of the resource; use Informer.Run or a Group to run it.
func (r Resource[T, L]) Informer(scope Scope, options InformerOptions[T]) *Informer[T] {
	i, err := newInformer(scope, r.GroupVersionResource, options, r.sourceIn(options.Namespace))
	utilruntime.Must(err)
	return i
}

// NewMetadataInformer returns an informer of the metadata of a resource. On a wildcard it also supports resources
// whose schemas differ between logical clusters.
func NewMetadataInformer(scope Scope, gvr schema.GroupVersionResource, options InformerOptions[*metav1.PartialObjectMetadata]) (*Informer[*metav1.PartialObjectMetadata], error) {
	return newInformer(scope, gvr, options, metadataSource(gvr, options.Namespace))
}

// NewDynamicInformer returns an informer of a resource without Go types.
func NewDynamicInformer(scope Scope, gvr schema.GroupVersionResource, options InformerOptions[*unstructured.Unstructured]) (*Informer[*unstructured.Unstructured], error) {
	return newInformer(scope, gvr, options, dynamicSource(gvr, options.Namespace))
}

type guarded[T Object] struct {
	guardedState

	informer *Informer[T] // see informerSink
	scope    Scope
}

func (g guarded[T]) Get(key Key) (Object, bool) { return g.informer.store.get(key) }

func (g guarded[T]) All() iter.Seq2[Key, Object] {
	return func(visit func(Key, Object) bool) {
		g.informer.present(func(key Key, obj T) bool { return visit(key, obj) })
	}
}

func (g guarded[T]) Put(key Key, obj Object) {
	if typed, ok := obj.(T); ok {
		g.informer.upsert(key, typed)
	}
}

func (g guarded[T]) Remove(key Key) { g.informer.remove(key, nil) }

func (g guarded[T]) Replace(key Key, obj Object) {
	if typed, ok := obj.(T); ok {
		g.informer.store.set(key, typed)
	}
}

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
			if g.informer.options.Keep != nil && !g.informer.options.Keep(obj) {
				return nil
			}
			key := g.informer.KeyOf(obj)
			present[key], err = g.informer.prepare(obj)
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

// Restore starts an informer with the result of Save, synced but not Current. After an error the informer is empty.
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
