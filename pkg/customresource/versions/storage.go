package versions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

var _ storage.Interface = (*versionStore)(nil)

func (v *versionStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	stored, err := v.encode(ctx, obj)
	if err != nil {
		return err
	}
	if err := v.check.checkServed(stored); err != nil {
		return err
	}
	if err := mayCreate(ctx, stored.GetName()); err != nil {
		return err
	}
	var created packed.Object
	if err := v.raw.Create(ctx, key, stored, &created, ttl); err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	return v.decodeInto(ctx, &created, out)
}

func (v *versionStore) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions) error {
	var deleted packed.Object
	// The cached object of the caller has the wrong type for the shared store, which has its own cache.
	if err := v.raw.Delete(ctx, key, &deleted, preconditions, v.validator(validate), nil, opts); err != nil {
		return err
	}
	err := v.decodeInto(ctx, &deleted, out)
	v.clearUnreadable(&deleted)
	return err
}

// validator decodes objects for validate.
func (v *versionStore) validator(validate storage.ValidateObjectFunc) storage.ValidateObjectFunc {
	if validate == nil {
		return nil
	}
	return func(ctx context.Context, obj runtime.Object) error {
		stored, err := storedObject(obj)
		if err != nil {
			return err
		}
		u, err := v.decode(ctx, stored)
		if unreadable.Of(err) != nil {
			u, err = undecoded(stored), nil
		}
		if err != nil {
			return err
		}
		return validate(ctx, u)
	}
}

func (v *versionStore) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	var stored packed.Object
	key, err := v.storedKey(ctx, key)
	if err != nil {
		return err
	}
	if err := v.raw.Get(ctx, key, opts, &stored); err != nil {
		return err
	}
	if err := v.decodeInto(ctx, &stored, out); err != nil {
		return err
	}
	if u, ok := out.(*unstructured.Unstructured); ok && v.callsWebhook && ctx.Value(dryRunKey{}) != nil {
		SameManagers(u, v.gvk.GroupVersion().String())
	}
	return nil
}

func (v *versionStore) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	list, ok := out.(*unstructured.UnstructuredList)
	if !ok {
		return fmt.Errorf("cannot list custom resources into a %T", out)
	}
	key, opts = v.listRequest(key, opts)
	var stored packed.List
	if err := v.raw.GetList(ctx, key, v.withAttributes(opts), &stored); err != nil {
		return err
	}
	if err := v.fillList(ctx, stored.Items, list); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	list.SetResourceVersion(stored.ResourceVersion)
	list.SetContinue(stored.Continue)
	list.SetRemainingItemCount(stored.RemainingItemCount)
	selector := opts.Predicate.ShardSelector
	if selector == nil {
		selector = request.ShardSelectorFrom(ctx)
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) && selector != nil && !selector.Empty() {
		// The shared store does it for typed lists only.
		return unstructured.SetNestedField(list.Object, selector.String(), "metadata", "shardInfo", "selector")
	}
	return nil
}

// fillList decodes stored objects into list, or as JSON into the slice of a jsonLister in ctx. The registry copies the
// objects that it changes. It stops with ctx, because a slow webhook may be called for each object.
func (v *versionStore) fillList(ctx context.Context, stored []packed.Object, list *unstructured.UnstructuredList) error {
	asJSON, _ := ctx.Value(jsonItemsKey{}).(*[]json.RawMessage)
	if asJSON != nil {
		*asJSON = make([]json.RawMessage, 0, len(stored))
	} else {
		list.Items = make([]unstructured.Unstructured, 0, len(stored))
	}
	var u *unstructured.Unstructured
	grown, grows := int64(0), v.shape.hasDefaults()
	columns, _ := ctx.Value(columnsKey{}).(int)
	printed := int64(0)
	for i := range stored {
		if printed += int64(columns) * stored[i].Bytes(); printed > tableExpansion {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the columns of the table may have more than %d bytes: set the limit parameter, e.g. with --chunk-size", tableExpansion))
		}
		var data json.RawMessage
		var err error
		if asJSON != nil {
			data, err = v.encodeJSON(ctx, &stored[i])
		} else {
			u, _, err = v.decodeCached(ctx, &stored[i])
		}
		switch bad := unreadable.Of(err) != nil; {
		case bad && acceptsUndecoded(ctx) && asJSON == nil:
			u, err = undecoded(&stored[i]), nil
		case bad && skipsUnreadable(ctx):
			continue
		default:
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return v.readError(&stored[i], err)
		}
		size := int64(len(data))
		if asJSON != nil {
			*asJSON = append(*asJSON, data)
		} else {
			list.Items = append(list.Items, *u)
		}
		if grows && asJSON == nil {
			size = bytesOf(u.Object)
		}
		if grown += max(0, size-expansionFactor*stored[i].Bytes()); grows && grown > listExpansion {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("defaults add more than %d bytes to the objects of the list: set the limit parameter", listExpansion))
		}
	}
	return nil
}

func (v *versionStore) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, _ runtime.Object) error {
	if ctx.Value(trialKey{}) != nil {
		found := &unstructured.Unstructured{Object: map[string]any{}}
		found.SetGroupVersionKind(v.gvk)
		found.SetResourceVersion("1")
		if _, _, err := update(found, storage.ResponseMeta{ResourceVersion: 1}); err != nil {
			return err
		}
		return errors.New("a trial update must return an error")
	}
	updateStored := func(in runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
		before, err := storedObject(in)
		if err != nil {
			return nil, nil, err
		}
		var current unstructured.Unstructured
		if err := v.decodeInto(ctx, before, &current); err != nil {
			return nil, nil, err
		}
		unchanged := v.unchanged(before, &current)
		updated, ttl, err := v.limitedUpdate(ctx, update, &current, res)
		if err != nil {
			return nil, nil, err
		}
		if unchanged(updated) {
			return before, ttl, nil
		}
		stored, err := v.encode(ctx, updated)
		if err == nil {
			err = v.check.checkUpdate(before, stored)
		}
		if err == nil && before.IsZero() {
			err = mayCreate(ctx, stored.GetName())
		}
		return stored, ttl, err
	}
	var written packed.Object
	if err := v.raw.GuaranteedUpdate(ctx, key, &written, ignoreNotFound, preconditions, updateStored, nil); err != nil {
		return err
	}
	return v.decodeInto(ctx, &written, out)
}

// unchanged returns a function that reports whether an update did not change the object. An unchanged object
// must be stored as it was, because a conversion to the stored version may change its content and thus its
// resource version. The function returns false if the object needs no conversion, because this store is for
// the stored version. It also returns false if the object is stored in another version, and must be
// converted.
func (v *versionStore) unchanged(stored *packed.Object, current *unstructured.Unstructured) func(updated runtime.Object) bool {
	if version := v.gvk.GroupVersion(); version == v.stored || stored.GroupVersionKind().GroupVersion() != v.stored {
		return func(runtime.Object) bool { return false }
	}
	before := current.DeepCopy()
	return func(updated runtime.Object) bool { return reflect.DeepEqual(before, updated) }
}

type trialKey struct{}

// WithTrial marks an update that must not be stored. Any name exists as an empty object, and the updater must
// return an error.
func WithTrial(ctx context.Context) context.Context {
	return context.WithValue(ctx, trialKey{}, true)
}

func (v *versionStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, opts = v.listRequest(key, opts)
	stored, err := v.raw.Watch(ctx, key, v.withAttributes(opts))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &versionWatch{store: v, stored: stored, events: make(chan watch.Event), cancel: cancel}
	w.worker.Go(func() {
		defer context.AfterFunc(v.open, cancel)() //nolint:contextcheck // ctx also ends with the store
		w.run(ctx)
	})
	return w, nil
}

type creationKey struct{}

// WithCreation sets a check that is called with the name of each object that a request creates, immediately
// before it is stored. Admission, which may take long, has then finished.
func WithCreation(ctx context.Context, check func(ctx context.Context, name string) error) context.Context {
	return context.WithValue(ctx, creationKey{}, check)
}

func mayCreate(ctx context.Context, name string) error {
	if check, ok := ctx.Value(creationKey{}).(func(context.Context, string) error); ok {
		return check(ctx, name)
	}
	return nil
}

type versionWatch struct {
	store  *versionStore
	stored watch.Interface
	events chan watch.Event
	cancel context.CancelFunc
	worker sync.WaitGroup
}

func (w *versionWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *versionWatch) Stop() {
	w.cancel()
	w.stored.Stop()
	w.worker.Wait()
}

func (w *versionWatch) run(ctx context.Context) {
	defer close(w.events)
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-w.stored.ResultChan():
			if !ok {
				return
			}
			shown := w.store.event(ctx, event)
			if ctx.Err() != nil {
				return
			}
			if shown.Type == "" { // skipped
				continue
			}
			select {
			case w.events <- shown:
			case <-ctx.Done():
				return
			}
			if shown.Type == watch.Error {
				return
			}
		}
	}
}

// event decodes an event of the shared store. The result has no type if the event is skipped.
func (v *versionStore) event(ctx context.Context, event watch.Event) watch.Event {
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		shown, err := v.decodeEvent(ctx, event.Object, event.Type == watch.Deleted)
		switch bad := unreadable.Of(err) != nil; {
		case err == nil:
		case bad && (acceptsUndecoded(ctx) || event.Type == watch.Deleted):
			if stored, storedErr := storedInEvent(event.Object); storedErr == nil {
				shown = undecoded(stored)
			} else {
				shown = event.Object
			}
		case bad && skipsUnreadable(ctx):
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
	default:
		return event
	}
}

// derivable is an object that many watchers share together with values derived from it.
type derivable interface {
	Derive(key any, derive func(runtime.Object) (runtime.Object, error)) (runtime.Object, error)
}

// decodeEvent decodes the object of an event, once for all watchers of the store if they share the object.
func (v *versionStore) decodeEvent(ctx context.Context, obj runtime.Object, deleted bool) (runtime.Object, error) {
	decode := func(obj runtime.Object) (runtime.Object, error) {
		stored, err := storedInEvent(obj)
		if err != nil {
			return nil, err
		}
		read := v.decodeCached
		if deleted { // the previous state with the resource version of the event
			read = v.decodeStored
		}
		u, _, err := read(ctx, stored)
		return u, err
	}
	if shared, ok := obj.(derivable); ok {
		return shared.Derive(v, decode)
	}
	return decode(obj)
}

// storedInEvent returns the object of an event, which the watch cache may have wrapped to share it.
func storedInEvent(obj runtime.Object) (*packed.Object, error) {
	if wrapped, ok := obj.(runtime.CacheableObject); ok {
		obj = wrapped.GetObject()
	}
	return storedObject(obj)
}
