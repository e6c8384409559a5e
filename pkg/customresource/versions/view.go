package versions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/request"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// view is the storage of one version of one schema: it reads from and writes to
// the shared store, and runs the schema's codec on every object that passes.
type view struct {
	storage.Interface // the shared store, for what knows no objects

	raw   *rawStore
	gvk   schema.GroupVersionKind
	codec runtime.Codec
	// shape says which objects the codec leaves as they are, and shapes, by version, what defaults add
	// to those that it does not.
	shape  *shape
	shapes map[string]*shape
	// projection is what makes objects of the resource of what is stored; nil if they are.
	projection *definitions.Projection
	// asIs is set for the view of metadata: objects of any schema, of which
	// only the version is changed.
	asIs bool
	// hooked is set where a webhook converts between versions, of which stored is the
	// one that objects are written in; calls bound how often it is called.
	hooked bool
	stored schema.GroupVersion
	calls  *calls
	// tries is what an object has to survive to be written; nil if it is nothing.
	tries *tries
	// selects are the attributes by which selectable fields select; nil if there
	// are no such fields.
	selects *tenantstorage.Attributes

	decoded *memory[*unstructured.Unstructured]
	encoded *memory[json.RawMessage]
	// listStore is the registry by which lists as JSON read, once there was one.
	listStore atomic.Pointer[genericregistry.Store]
	// writer writes objects of the group "", once there was one.
	writer atomic.Pointer[CoreWriter]

	done     chan struct{}
	doneOnce sync.Once

	// uses is how many lists are reading, dropped whether upstream has no more
	// use of the view; they belong to rawStores.mu.
	uses    int
	dropped bool
}

var _ storage.Interface = (*view)(nil)

func newView(raw *rawStore, sch *definitions.Schema, gvk schema.GroupVersionKind, codec runtime.Codec, calls *calls, decoded, encoded *budget) *view {
	stored := schema.GroupVersion{Group: gvk.Group, Version: sch.StoredVersion()}
	v := &view{
		Interface: raw.Interface,
		raw:       raw,
		gvk:       gvk,
		codec:     codec,
		shapes:    shapesOf(sch.Spec()),
		asIs:      sch.MetadataOnly,
		stored:    stored,
		calls:     calls,
		tries:     newTries(sch, stored),
		decoded:   newMemory[*unstructured.Unstructured](decoded),
		encoded:   newMemory[json.RawMessage](encoded),
		done:      make(chan struct{}),
	}
	v.shape = v.shapes[gvk.Version]
	return v
}

// close ends the watches of the view and forgets its objects.
func (v *view) close() {
	v.doneOnce.Do(func() { close(v.done) })
	v.decoded.close()
	v.encoded.close()
}

// decode returns the view's form of a stored object. The caller owns the result.
func (v *view) decode(ctx context.Context, stored *packed.Object) (*unstructured.Unstructured, error) {
	out, remembered, err := v.decodeOnce(ctx, stored)
	if remembered {
		out = out.DeepCopy()
	}
	return out, err
}

// decodeShared is decode for callers that do not change the result.
func (v *view) decodeShared(ctx context.Context, stored *packed.Object) (*unstructured.Unstructured, error) {
	out, _, err := v.decodeOnce(ctx, stored)
	return out, err
}

// decodeOnce is decode, and reports whether the view remembers the result, so that nobody
// may change it.
func (v *view) decodeOnce(ctx context.Context, stored *packed.Object) (out *unstructured.Unstructured, remembered bool, err error) {
	key, remembers := keyOf(stored), !v.asIs && v.remembers(stored)
	if remembers {
		if known, ok := v.decoded.recall(key); ok {
			return known, true, nil
		}
	}
	out, left, err := v.show(ctx, stored)
	v.note(stored, err)
	if err != nil || left || !remembers {
		return out, false, err // if left, to unpack it again takes less than to copy what is remembered
	}
	return out, v.decoded.remember(key, out, bytesOf(out.Object)), nil
}

// remembers reports whether the view may remember its form of a stored object.
// What a conversion webhook answers is asked for each time: the webhook may be
// broken today and mended tomorrow, without a new version of the object, and what
// is remembered would even be written back with the next change.
func (v *view) remembers(stored *packed.Object) bool {
	return !v.hooked || stored.GroupVersionKind().GroupVersion() == v.gvk.GroupVersion()
}

// encodeShown returns the JSON of the view's form of a stored object.
func (v *view) encodeShown(ctx context.Context, stored *packed.Object) (json.RawMessage, error) {
	key, remembers := keyOf(stored), v.remembers(stored)
	var out *unstructured.Unstructured
	if remembers {
		if known, ok := v.encoded.recall(key); ok {
			return known, nil
		}
		// Not remembered as an object: a long list would drive out all others.
		out, _ = v.decoded.recall(key)
	}
	if out == nil {
		var err error
		out, err = v.decodeAnew(ctx, stored)
		if v.note(stored, err); err != nil {
			return nil, err
		}
	}
	data, err := json.Marshal(out.Object)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", v.gvk.Kind, stored.GetName(), err)
	}
	if remembers {
		v.encoded.remember(key, data, int64(len(data)))
	}
	return data, nil
}

// decodeAnew is decode without the view's memory, which it neither uses nor fills: the object
// of a DELETED event is the state before under the resource version of the event.
func (v *view) decodeAnew(ctx context.Context, stored *packed.Object) (*unstructured.Unstructured, error) {
	shown, _, err := v.show(ctx, stored)
	return shown, err
}

// show returns the view's form of a stored object, and whether it is as it is stored. An error of the
// object itself is an unreadable.Error.
func (v *view) show(ctx context.Context, stored *packed.Object) (u *unstructured.Unstructured, left bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			u, err = nil, unreadable.Recovered(r)
		}
	}()
	if u, left, err = v.unpack(stored); err != nil || left {
		return u, left, err
	}
	if err := v.checkExpansion(stored, u.Object, u.GroupVersionKind().Version); err != nil {
		return nil, false, err
	}
	u, err = v.convert(ctx, u)
	return u, false, err
}

// unpack returns a stored object as the view's codec is to get it, and whether the codec would
// leave it as it is.
func (v *view) unpack(stored *packed.Object) (u *unstructured.Unstructured, left bool, err error) {
	u = stored.Unstructured()
	hideIdentity(u)
	if v.projection != nil {
		if u, err = v.projection.Show(u); err != nil {
			return nil, false, &unreadable.Error{Reason: unreadable.Conversion, Err: err}
		}
	}
	if v.asIs {
		u.SetGroupVersionKind(v.gvk)
		return u, true, nil
	}
	return u, u.GroupVersionKind() == v.gvk && v.shape.leavesObject(u.Object), nil
}

// convert runs the view's codec on an object, which it may change and keep.
func (v *view) convert(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	name := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	called := v.hooked && u.GroupVersionKind().GroupVersion() != v.gvk.GroupVersion()
	done, err := v.converts(ctx, u.GroupVersionKind().GroupVersion(), v.gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	defer done()
	out, err := decodeObject(v.codec, u, v.gvk.GroupVersion())
	if err != nil {
		err = fmt.Errorf("%s %s cannot be read with its present definition: %w", v.gvk.Kind, name, err)
		if !called { // a webhook may succeed the next time
			err = &unreadable.Error{Reason: unreadable.Conversion, Err: err}
		}
		return nil, err
	}
	return out, nil
}

// hideIdentity removes from an object what storage alone has to know.
func hideIdentity(u *unstructured.Unstructured) {
	metadata, _ := u.Object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if _, ok := annotations[request.IdentityAnnotation]; !ok {
		return
	}
	delete(annotations, request.IdentityAnnotation)
	if len(annotations) == 0 {
		delete(metadata, "annotations")
	}
}

// decodeInto puts the view's form of a stored object into what the caller gave.
func (v *view) decodeInto(ctx context.Context, stored *packed.Object, into runtime.Object) error {
	target, ok := into.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("%T cannot take a custom resource", into)
	}
	if stored.IsZero() { // not found, which the caller ignores
		target.Object = map[string]any{}
		target.SetGroupVersionKind(v.gvk)
		return nil
	}
	out, err := v.decode(ctx, stored)
	if unreadable.Of(err) != nil && takesBare(ctx) {
		out, err = v.bare(stored), nil
	}
	if err != nil {
		return v.failed(stored, err)
	}
	target.Object = out.Object
	return nil
}

// encode returns the stored form of an object, which it leaves as it is.
func (v *view) encode(ctx context.Context, obj runtime.Object) (*unstructured.Unstructured, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T is not a custom resource", obj)
	}
	if v.asIs || v.projection != nil {
		return nil, errors.New("metadata of all schemas, and what is shown of other objects, can only be read")
	}
	done, err := v.converts(ctx, v.gvk.GroupVersion(), v.stored)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := v.tries.writes(u, v.gvk); err != nil {
		return nil, err
	}
	return encodeObject(v.codec, u)
}

// Create implements storage.Interface.
func (v *view) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	stored, err := v.encode(ctx, obj)
	if err != nil {
		return err
	}
	if err := v.tries.reads(stored); err != nil {
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

// Delete implements storage.Interface.
func (v *view) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions) error {
	var deleted packed.Object
	// The object that the caller knows has the wrong form for the shared store,
	// which has its own cache to find it in.
	if err := v.raw.Delete(ctx, key, &deleted, preconditions, v.validator(validate), nil, opts); err != nil {
		return err
	}
	err := v.decodeInto(ctx, &deleted, out)
	v.forget(&deleted)
	return err
}

// validator shows the view's form of an object to validate.
func (v *view) validator(validate storage.ValidateObjectFunc) storage.ValidateObjectFunc {
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
			u, err = v.bare(stored), nil
		}
		if err != nil {
			return err
		}
		return validate(ctx, u)
	}
}

// Get implements storage.Interface.
func (v *view) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
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
	if u, ok := out.(*unstructured.Unstructured); ok && v.hooked && ctx.Value(dryRunKey{}) != nil {
		SameManagers(u, v.gvk.GroupVersion().String())
	}
	return nil
}

// GetList implements storage.Interface.
func (v *view) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	list, ok := out.(*unstructured.UnstructuredList)
	if !ok {
		return fmt.Errorf("%T cannot take a list of custom resources", out)
	}
	key, opts = v.collected(key, opts)
	var stored packed.List
	if err := v.raw.GetList(ctx, key, v.selected(opts), &stored); err != nil {
		return err
	}
	if err := v.showItems(ctx, stored.Items, list); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	if list.Object == nil {
		list.Object = map[string]any{}
	}
	list.SetResourceVersion(stored.ResourceVersion)
	list.SetContinue(stored.Continue)
	list.SetRemainingItemCount(stored.RemainingItemCount)
	selector := opts.Predicate.ShardSelector
	if selector == nil {
		selector = request.ShardSelectorFrom(ctx)
	}
	setShardInfo(list, selector)
	return nil
}

// GuaranteedUpdate implements storage.Interface.
func (v *view) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, _ runtime.Object) error {
	if ctx.Value(trialKey{}) != nil {
		return v.try(update)
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
		updated, ttl, err := v.managed(ctx, update, &current, res)
		if err != nil {
			return nil, nil, err
		}
		if unchanged(updated) {
			return before, ttl, nil
		}
		stored, err := v.encode(ctx, updated)
		if err == nil {
			err = v.tries.still(before, stored)
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

// unchanged returns a function that reports whether an update has left an object as it was. It must be stored as it is
// then, because to convert it and back may yield other content, and with it a new version. It is converted
// nevertheless if it is not stored in the version in which it would be written, or does not differ from that.
func (v *view) unchanged(stored *packed.Object, current *unstructured.Unstructured) func(updated runtime.Object) bool {
	if version := v.gvk.GroupVersion(); version == v.stored || stored.GroupVersionKind().GroupVersion() != v.stored {
		return func(runtime.Object) bool { return false }
	}
	before := current.DeepCopy()
	return func(updated runtime.Object) bool { return reflect.DeepEqual(before, updated) }
}

// Watch implements storage.Interface.
func (v *view) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, opts = v.collected(key, opts)
	stored, err := v.raw.Watch(ctx, key, v.selected(opts))
	if err != nil {
		return nil, err
	}
	return newViewWatch(ctx, v, stored), nil
}
