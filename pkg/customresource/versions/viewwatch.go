package versions

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// viewWatch shows the events of the shared store in the form of a view.
type viewWatch struct {
	view   *view
	stored watch.Interface
	events chan watch.Event

	stop     chan struct{}
	stopOnce sync.Once
	worker   sync.WaitGroup
}

func newViewWatch(ctx context.Context, v *view, stored watch.Interface) *viewWatch {
	w := &viewWatch{
		view:   v,
		stored: stored,
		events: make(chan watch.Event),
		stop:   make(chan struct{}),
	}
	w.worker.Go(func() { w.run(ctx) })
	return w
}

// ResultChan implements watch.Interface.
func (w *viewWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *viewWatch) Stop() {
	w.stopOnce.Do(func() { close(w.stop) })
	w.stored.Stop()
	w.worker.Wait()
}

func (w *viewWatch) run(ctx context.Context) {
	defer close(w.events)
	for {
		select {
		case <-w.stop:
			return
		case <-w.view.done:
			return
		case event, ok := <-w.stored.ResultChan():
			if !ok {
				return
			}
			shown := w.view.event(ctx, event)
			if shown.Type == "" { // skipped
				continue
			}
			select {
			case w.events <- shown:
			case <-w.stop:
				return
			case <-w.view.done:
				return
			}
			if shown.Type == watch.Error {
				return
			}
		}
	}
}

// event returns the view's form of an event of the shared store, and an event without a type for one
// that is skipped.
func (v *view) event(ctx context.Context, event watch.Event) watch.Event {
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		shown, err := v.shownEvent(ctx, event.Object, event.Type == watch.Deleted)
		switch bad := unreadable.Of(err) != nil; {
		case err == nil:
		case bad && (takesBare(ctx) || event.Type == watch.Deleted):
			shown = v.bareEvent(event.Object)
		case bad && skips(ctx):
			return watch.Event{}
		default:
			status := apierrors.NewInternalError(err).Status()
			return watch.Event{Type: watch.Error, Object: &status}
		}
		return watch.Event{Type: event.Type, Object: shown}
	case watch.Bookmark:
		bookmark := &unstructured.Unstructured{Object: map[string]any{}}
		bookmark.SetGroupVersionKind(v.gvk)
		if m, err := meta.Accessor(event.Object); err == nil {
			bookmark.SetResourceVersion(m.GetResourceVersion())
			if annotations := m.GetAnnotations(); len(annotations) > 0 {
				bookmark.SetAnnotations(annotations)
			}
		}
		return watch.Event{Type: watch.Bookmark, Object: bookmark}
	case watch.Error:
		return event
	default:
		return event
	}
}

// deriving is an object of an event that many watchers share, and with it what
// they make of it.
type deriving interface {
	Derive(key any, derive func(runtime.Object) (runtime.Object, error)) (runtime.Object, error)
}

// shownEvent returns the view's form of the object of an event. All watchers of
// the view get the same, which is encoded once for all of them.
func (v *view) shownEvent(ctx context.Context, obj runtime.Object, deleted bool) (runtime.Object, error) {
	shared, ok := obj.(deriving)
	if !ok {
		return v.decodeEvent(ctx, obj, deleted)
	}
	return shared.Derive(v, func(obj runtime.Object) (runtime.Object, error) {
		stored, err := storedObject(obj)
		switch {
		case err != nil:
			return nil, err
		case deleted:
			return v.decodeAnew(ctx, stored)
		default:
			return v.decodeShared(ctx, stored)
		}
	})
}

// bareEvent is bare for the object of an event.
func (v *view) bareEvent(obj runtime.Object) runtime.Object {
	if wrapped, ok := obj.(runtime.CacheableObject); ok {
		obj = wrapped.GetObject()
	}
	stored, err := storedObject(obj)
	if err != nil {
		return obj
	}
	return v.bare(stored)
}

// decodeEvent decodes the object of an event, which may be the wrapper by which
// the watch cache shares an object among many watchers.
func (v *view) decodeEvent(ctx context.Context, obj runtime.Object, deleted bool) (*unstructured.Unstructured, error) {
	if wrapped, ok := obj.(runtime.CacheableObject); ok {
		obj = wrapped.GetObject()
	}
	stored, err := storedObject(obj)
	if err != nil {
		return nil, err
	}
	if deleted {
		return v.decodeAnew(ctx, stored)
	}
	return v.decode(ctx, stored)
}
