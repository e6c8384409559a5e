package reconcile

import (
	"context"
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	patched, err := patch(ctx, patcher, old, base, oldMain, newMain)
	if err != nil {
		return old, err
	}
	if patched != nil {
		current = *patched
		base = current.GetResourceVersion()
	}
	patched, err = patch(ctx, patcher, old, base, oldStatus, newStatus, "status")
	if err != nil {
		return current, err
	}
	if patched != nil {
		current = *patched
	}
	return current, nil
}

// patch sends the difference between two JSON documents, if there is one.
func patch[T client.Object](ctx context.Context, patcher Patcher[T], obj T, resourceVersion string, from, to []byte, subresources ...string) (*T, error) {
	diff, err := jsonpatch.CreateMergePatch(from, to)
	if err != nil {
		return nil, fmt.Errorf("comparing two states of %s: %w", client.KeyFor(obj), err)
	}
	if string(diff) == "{}" {
		return nil, nil
	}
	document := map[string]any{}
	if err := json.Unmarshal(diff, &document); err != nil {
		return nil, fmt.Errorf("comparing two states of %s: %w", client.KeyFor(obj), err)
	}
	metadata, _ := document["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		document["metadata"] = metadata
	}
	metadata["uid"] = obj.GetUID()
	metadata["resourceVersion"] = resourceVersion
	data, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("comparing two states of %s: %w", client.KeyFor(obj), err)
	}
	patched, err := patcher.Patch(ctx, obj.GetName(), types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", client.KeyFor(obj), err)
	}
	return &patched, nil
}

// split returns an object without its status, and its status alone. What the
// server owns is left out.
func split(obj client.Object) (main, status []byte, err error) {
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding %s: %w", client.KeyFor(obj), err)
	}
	document := map[string]any{}
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, nil, fmt.Errorf("encoding %s: %w", client.KeyFor(obj), err)
	}
	statusOnly := map[string]any{}
	if s, ok := document["status"]; ok {
		statusOnly["status"] = s
		delete(document, "status")
	}
	if metadata, ok := document["metadata"].(map[string]any); ok {
		for _, field := range []string{"resourceVersion", "uid", "generation", "creationTimestamp", "managedFields"} {
			delete(metadata, field)
		}
	}
	if main, err = json.Marshal(document); err != nil {
		return nil, nil, fmt.Errorf("encoding %s: %w", client.KeyFor(obj), err)
	}
	if status, err = json.Marshal(statusOnly); err != nil {
		return nil, nil, fmt.Errorf("encoding %s: %w", client.KeyFor(obj), err)
	}
	return main, status, nil
}
