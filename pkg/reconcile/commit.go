package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/shardplane/shardplane/pkg/client"
)

// Patcher is the part of a typed client that Commit uses.
type Patcher[T client.Object] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Commit writes the difference between two states of an object, if any, and returns the object as stored.
//
// Metadata and spec are written by one request and the status by a second one. The preconditions of each are the UID
// and resourceVersion on which it is based. If the second one fails, Commit returns its error and the result of the
// first.
func Commit[T client.Object](ctx context.Context, patcher Patcher[T], old, updated T) (T, error) {
	diff, status, err := changes(old, updated)
	if err != nil {
		return updated, err
	}
	current := updated
	base := old.GetResourceVersion()
	if len(diff) > 0 {
		if current, err = patch(ctx, patcher, old, base, diff); err != nil {
			return old, err
		}
		base = current.GetResourceVersion()
	}
	if len(status) > 0 {
		patched, err := patch(ctx, patcher, old, base, status, "status")
		if err != nil {
			return current, err
		}
		current = patched
	}
	return current, nil
}

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
		return obj, fmt.Errorf("encoding the change of %s: %w", client.KeyOf(obj), err)
	}
	patched, err := patcher.Patch(ctx, obj.GetName(), types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return obj, fmt.Errorf("writing %s: %w", client.KeyOf(obj), err)
	}
	return patched, nil
}

// changes returns the JSON merge patches from old to updated: of the status, and of everything else.
func changes(old, updated client.Object) (diff, status map[string]any, err error) {
	if equality.Semantic.DeepEqual(old, updated) {
		return nil, nil, nil
	}
	from, fromStatus, err := split(old)
	if err != nil {
		return nil, nil, err
	}
	to, toStatus, err := split(updated)
	if err != nil {
		return nil, nil, err
	}
	return difference(from, to), difference(fromStatus, toStatus), nil
}

// split separates the status from the rest of an object, and removes the metadata that the server manages.
func split(obj client.Object) (main, status map[string]any, err error) {
	main, err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding %s: %w", client.KeyOf(obj), err)
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

// difference returns the JSON merge patch (RFC 7386) from one document to another. Lists are replaced as a unit.
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

// Committer returns a function that calls Commit with a client for the logical cluster of the object.
func Committer[T client.Object, L runtime.Object](clients *client.Factory, resource client.Resource[T, L]) func(ctx context.Context, old, updated T) (T, error) {
	return func(ctx context.Context, old, updated T) (T, error) {
		return Commit(ctx, resource.In(clients.Cluster(client.KeyOf(old).Cluster.Path())), old, updated)
	}
}

// IgnoreNotFound returns nil for a NotFound error, and other errors unchanged.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Objects gives a server access to its own storage. Modify changes the stored object without a request or admission.
type Objects interface {
	Modify(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error)
}

// CommitStored is like Commit, but uses a single write that bypasses the API, which is much cheaper for objects in
// thousands of logical clusters. Admission is skipped and managed fields are not updated. The resource must have only
// one version. Changes that may delete the object, or that change its owner references, are written by requests.
func CommitStored[T client.Object](ctx context.Context, objects Objects, resource schema.GroupResource, patcher Patcher[T], old, updated T) (T, error) {
	if mayEnd(old, updated) || !equality.Semantic.DeepEqual(old.GetOwnerReferences(), updated.GetOwnerReferences()) {
		return Commit(ctx, patcher, old, updated)
	}
	diff, status, err := changes(old, updated)
	if err != nil {
		return old, err
	}
	if len(diff) == 0 && len(status) == 0 {
		return updated, nil
	}
	stored, err := objects.Modify(ctx, logicalcluster.From(old), resource, old.GetName(), func(u *unstructured.Unstructured) error {
		if u.GetUID() != old.GetUID() || u.GetResourceVersion() != old.GetResourceVersion() {
			return apierrors.NewConflict(resource, old.GetName(), errors.New("the object has been modified"))
		}
		merge(u.Object, diff)
		merge(u.Object, status)
		if _, metadata := diff["metadata"]; len(diff) > 1 || len(diff) == 1 && !metadata {
			u.SetGeneration(u.GetGeneration() + 1)
		}
		return nil
	})
	if err != nil {
		return old, fmt.Errorf("writing %s: %w", client.KeyOf(old), err)
	}
	written, _ := reflect.TypeAssert[T](reflect.New(reflect.TypeOf(old).Elem()))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, written); err != nil {
		return old, fmt.Errorf("reading %s: %w", client.KeyOf(old), err)
	}
	return written, nil
}

// mayEnd reports whether changed finalizers may cause the object to be deleted, or are added after its deletion began.
func mayEnd(old, updated client.Object) bool {
	before, after := old.GetFinalizers(), updated.GetFinalizers()
	removes := slices.ContainsFunc(before, func(name string) bool { return !slices.Contains(after, name) })
	return removes || old.GetDeletionTimestamp() != nil && len(after) > len(before)
}

// merge applies a JSON merge patch (RFC 7386) to an object.
func merge(object, patch map[string]any) {
	for name, value := range patch {
		below, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(object, name)
		case isObject:
			field, ok := object[name].(map[string]any)
			if !ok {
				field = map[string]any{}
				object[name] = field
			}
			merge(field, below)
		default:
			object[name] = value
		}
	}
}

// Latest caches the objects that a controller has written until an informer has observed them. Otherwise a fast
// controller would decide on stale state and run into conflicts. All objects must come from one server.
type Latest[T client.Object] struct {
	mu      sync.Mutex
	objects map[client.Key]T
}

// Wrote records an object as returned by a write.
func (l *Latest[T]) Wrote(obj T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.KeyOf(obj)
	if known, ok := l.objects[key]; ok && newer(known, obj) {
		return
	}
	if l.objects == nil {
		l.objects = map[client.Key]T{}
	}
	l.objects[key] = obj
}

// Of returns the newer of the cached and the last written object. One that is missing in the informer was deleted.
func (l *Latest[T]) Of(key client.Key, cached T, exists bool) (T, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	written, ok := l.objects[key]
	if !ok {
		return cached, exists
	}
	if exists && newer(written, cached) {
		return written, true
	}
	delete(l.objects, key)
	return cached, exists
}

// Commit calls commit and records the result if it is a new version of the object.
func (l *Latest[T]) Commit(ctx context.Context, commit func(ctx context.Context, old, updated T) (T, error), old, updated T) (T, error) {
	written, err := commit(ctx, old, updated)
	if any(written) != any(*new(T)) && written.GetResourceVersion() != old.GetResourceVersion() {
		l.Wrote(written)
	}
	return written, err
}

// Is reports whether obj is exactly the last written version.
func (l *Latest[T]) Is(obj T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	written, ok := l.objects[client.KeyOf(obj)]
	return ok && written.GetUID() == obj.GetUID() && written.GetResourceVersion() == obj.GetResourceVersion()
}

// newer reports whether a is a later version of the same object than b; false if this cannot be determined.
func newer[T client.Object](a, b T) bool {
	if a.GetUID() != b.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
