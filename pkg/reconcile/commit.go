package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
)

// Patcher is the part of a typed client that Commit needs.
type Patcher[T client.Object] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Commit writes what is different between two states of an object and returns
// the object as the server has it then. Nothing is written, and updated is
// returned, where nothing is different.
//
// Metadata and spec go in one request and the status in a second one after it.
// Each carries the UID and the resourceVersion that it starts from: if the
// object was changed or replaced meanwhile, the server refuses with a conflict
// and the caller decides anew. If the second request fails, the caller sees the
// error along with the object that the first one left behind.
func Commit[T client.Object](ctx context.Context, patcher Patcher[T], old, updated T) (T, error) {
	if equality.Semantic.DeepEqual(old, updated) {
		return updated, nil
	}
	oldMain, oldStatus, err := split(old)
	if err != nil {
		return updated, err
	}
	newMain, newStatus, err := split(updated)
	if err != nil {
		return updated, err
	}

	current := updated
	base := old.GetResourceVersion()
	if diff := difference(oldMain, newMain); len(diff) > 0 {
		if current, err = patch(ctx, patcher, old, base, diff); err != nil {
			return old, err
		}
		base = current.GetResourceVersion()
	}
	if diff := difference(oldStatus, newStatus); len(diff) > 0 {
		patched, err := patch(ctx, patcher, old, base, diff, "status")
		if err != nil {
			return current, err
		}
		current = patched
	}
	return current, nil
}

// patch sends a difference.
func patch[T client.Object](ctx context.Context, patcher Patcher[T], obj T, resourceVersion string, diff map[string]any, subresources ...string) (T, error) {
	metadata, _ := diff["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		diff["metadata"] = metadata
	}
	metadata["uid"] = obj.GetUID()
	metadata["resourceVersion"] = resourceVersion
	data, err := json.Marshal(diff)
	if err != nil {
		return obj, fmt.Errorf("encoding the change of %s: %w", client.KeyFor(obj), err)
	}
	patched, err := patcher.Patch(ctx, obj.GetName(), types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return obj, fmt.Errorf("writing %s: %w", client.KeyFor(obj), err)
	}
	return patched, nil
}

// split returns an object without its status, and its status alone. What the
// server owns is left out.
func split(obj client.Object) (main, status map[string]any, err error) {
	main, err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding %s: %w", client.KeyFor(obj), err)
	}
	status = map[string]any{}
	if s, ok := main["status"]; ok {
		status["status"] = s
		delete(main, "status")
	}
	if metadata, ok := main["metadata"].(map[string]any); ok {
		for _, field := range []string{"resourceVersion", "uid", "generation", "creationTimestamp", "managedFields"} {
			delete(metadata, field)
		}
	}
	return main, status, nil
}

// difference returns the JSON merge patch that leads from one document to
// another: what is new or changed, and nil for what is not there any more.
// Lists are replaced as a whole.
func difference(from, to map[string]any) map[string]any {
	diff := map[string]any{}
	for key := range from {
		if _, kept := to[key]; !kept {
			diff[key] = nil
		}
	}
	for key, value := range to {
		old, existed := from[key]
		oldMap, wasMap := old.(map[string]any)
		newMap, isMap := value.(map[string]any)
		switch {
		case existed && wasMap && isMap:
			if nested := difference(oldMap, newMap); len(nested) > 0 {
				diff[key] = nested
			}
		case !existed || !reflect.DeepEqual(old, value):
			diff[key] = value
		}
	}
	return diff
}
