package versions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// Defaults multiply: an object of 3 KB may have 10 MB when they are set, and one that was written
// before a definition got larger defaults may have any size. The server sets defaults whenever it
// reads an object, e.g. for its own informers at each start. So it counts first what they add.
const (
	// leastExpansion is what defaults may add to any object, in bytes of memory, and expansionFactor
	// how many times its size they may add to a larger one.
	leastExpansion, expansionFactor = 1 << 20, 16
	// listExpansion is what the objects of a list may have, beyond expansionFactor times their size, that
	// is answered at once.
	listExpansion = 256 << 20
)

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

// checkExpansion returns an error if the defaults of its version add too much to an object.
func (v *view) checkExpansion(stored *packed.Object, object map[string]any, version string) error {
	limit := max(leastExpansion, expansionFactor*stored.Bytes())
	if added := v.shapes[version].expansion(object); added > limit {
		return &unreadable.Error{Reason: unreadable.Defaults, Err: fmt.Errorf("the defaults of its definition add %d bytes, at most %d are allowed: delete the object, or make the defaults of version %s smaller", added, limit, version)}
	}
	return nil
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
