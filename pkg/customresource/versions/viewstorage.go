package versions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

var _ storage.Interface = (*view)(nil)

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

// showItems puts the view's form of stored objects into list, or as JSON to where
// ctx says. The registry above copies what it changes. It ends with ctx:
// there may be a slow webhook to ask about each object.
func (v *view) showItems(ctx context.Context, stored []packed.Object, list *unstructured.UnstructuredList) error {
	asJSON := jsonItemsFrom(ctx)
	if asJSON != nil {
		asJSON.items = make([]json.RawMessage, 0, len(stored))
	} else {
		list.Items = make([]unstructured.Unstructured, 0, len(stored))
	}
	var u *unstructured.Unstructured
	grown, grows := int64(0), v.shape.hasDefaults()
	for i := range stored {
		var data json.RawMessage
		var err error
		if asJSON != nil {
			data, err = v.encodeShown(ctx, &stored[i])
		} else {
			u, err = v.decodeShared(ctx, &stored[i])
		}
		switch bad := unreadable.Of(err) != nil; {
		case bad && takesBare(ctx) && asJSON == nil:
			u, err = v.bare(&stored[i]), nil
		case bad && skips(ctx):
			continue
		default:
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return v.failed(&stored[i], err)
		}
		size := int64(len(data))
		if asJSON != nil {
			asJSON.items = append(asJSON.items, data)
		} else {
			list.Items = append(list.Items, *u)
		}
		if grows && asJSON == nil {
			size = bytesOf(u.Object)
		}
		if grown += max(0, size-expansionFactor*stored[i].Bytes()); grows && grown > listExpansion {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("defaults add more than %d bytes to the objects of the list: use the parameter limit", listExpansion))
		}
	}
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

type trialKey struct{}

// WithTrial marks an update that is not to reach storage: whatever is named is found,
// as an object that says nothing. What does the update is to refuse it.
func WithTrial(ctx context.Context) context.Context {
	return context.WithValue(ctx, trialKey{}, true)
}

// try tries an update.
func (v *view) try(update storage.UpdateFunc) error {
	found := &unstructured.Unstructured{Object: map[string]any{}}
	found.SetGroupVersionKind(v.gvk)
	found.SetResourceVersion("1")
	if _, _, err := update(found, storage.ResponseMeta{ResourceVersion: 1}); err != nil {
		return err
	}
	return errors.New("a trial was not refused")
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
