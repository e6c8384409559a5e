package client

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/shardplane/shardplane/pkg/request"
)

func newInformer[T Object](gvr schema.GroupVersionResource, scope Scope, source listerWatcher, options InformerOptions[T]) *Informer[T] {
	name := options.Name
	if name == "" {
		name = gvr.GroupResource().String() + "@" + scope.String()
	}
	i := &Informer[T]{
		connection: newConnection(name, source),
		gvr:        gvr,
		sharded:    scope.factory.sharded,
		everywhere: scope.segment == request.Wildcard,
		options:    options,
		store:      newStore(options.Indexers),
		mu:         &sync.Mutex{},
		guard:      trust{},
	}
	i.handlers = handlers[T]{name: name, counts: i.counts}
	i.onSynced = i.notifySynced
	i.pagesOnly = options.DisableWatchList
	i.selected = metav1.ListOptions{LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector}
	i.metrics = scope.factory.metrics
	if options.Ranges != nil {
		i.useRanges(options.Ranges)
	}
	return i
}

// Run follows the resource until ctx is done and all its goroutines have ended. It fails only if the informer runs
// already.
func (i *Informer[T]) Run(ctx context.Context) error {
	if i.setRunning(true) {
		return fmt.Errorf("informer %s is already running: run it only once", i.name)
	}
	defer i.setRunning(false)
	defer i.metrics.watch(i)()
	var guarding sync.WaitGroup
	defer guarding.Wait()
	guarding.Go(func() { i.guard.Run(ctx) })
	if i.rangeState != nil {
		if source, ok := i.rangeState.source.(LoadedRanges); ok {
			defer source.Follow(i.LoadedRanges)()
		}
		i.followRanges(ctx)
	} else {
		i.follow(ctx, &informerSink[T]{informer: i})
	}
	i.handlers.wait(i.mu)
	return nil
}

// MoveTo makes an informer that does not run use another scope, e.g. after the address of a server changed. The
// next Run lists the complete state and notifies handlers of the differences.
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
	i.source, i.state.resourceVersion, i.metrics = source, "", scope.factory.metrics
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

// Informer returns an informer of the resource; use Informer.Run or a Group to run it. An empty namespace in
// options means all.
func (r Resource[T, L]) Informer(scope Scope, options InformerOptions[T]) *Informer[T] {
	r.identity = r.identity.fresh()
	i, err := newInformerAt(scope, r.GroupVersionResource, options, func(scope Scope) (listerWatcher, error) {
		c := r.InNamespace(scope, options.Namespace)
		return sourceOf(c.List, c.Watch), nil
	})
	utilruntime.Must(err)
	return i
}

func newInformerAt[T Object](scope Scope, gvr schema.GroupVersionResource, options InformerOptions[T], source func(Scope) (listerWatcher, error)) (*Informer[T], error) {
	at, err := source(scope)
	if err != nil {
		return nil, err
	}
	i := newInformer(gvr, scope, at, options)
	i.sourceAt = source
	if guard := scope.factory.guard; guard != nil {
		i.guard = guard(guarded[T]{i, i, scope})
		i.before = func(ctx context.Context) error { return i.guard.BeforeList(ctx, i.lastBreak()) }
	}
	return i, nil
}

// NewMetadataInformer returns an informer of the metadata of a resource. On a wildcard it also supports resources
// whose schemas differ between logical clusters.
func NewMetadataInformer(scope Scope, gvr schema.GroupVersionResource, options InformerOptions[*metav1.PartialObjectMetadata]) (*Informer[*metav1.PartialObjectMetadata], error) {
	return newInformerAt(scope, gvr, options, func(scope Scope) (listerWatcher, error) {
		clients, err := scope.Metadata()
		if err != nil {
			return listerWatcher{}, err
		}
		c := clients.Resource(gvr).Namespace(options.Namespace)
		return sourceOf(c.List, c.Watch), nil
	})
}

// NewDynamicInformer returns an informer of a resource without Go types.
func NewDynamicInformer(scope Scope, gvr schema.GroupVersionResource, options InformerOptions[*unstructured.Unstructured]) (*Informer[*unstructured.Unstructured], error) {
	return newInformerAt(scope, gvr, options, func(scope Scope) (listerWatcher, error) {
		clients, err := scope.Dynamic()
		if err != nil {
			return listerWatcher{}, err
		}
		c := clients.Resource(gvr).Namespace(options.Namespace)
		return sourceOf(c.List, c.Watch), nil
	})
}
