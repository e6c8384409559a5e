package reconcile

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

// Objects are where the kinds of the system are stored, as the server that serves them has
// them. Modify lets change edit what is stored, without a request: nothing else looks at it.
type Objects interface {
	Modify(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error)
}

// CommitStored is Commit in one write and without a request, which takes a small part of the
// time: it is for what a server says itself in each of thousands of logical clusters.
// Admission does not look at it, and fields keep the managers that they have. The kind has one
// version.
//
// What can end an object, or has meaning for those that own it, is written by a request.
func CommitStored[T client.Object](ctx context.Context, objects Objects, resource schema.GroupResource, patcher Patcher[T], old, updated T) (T, error) {
	if mayEnd(old, updated) || !equality.Semantic.DeepEqual(old.GetOwnerReferences(), updated.GetOwnerReferences()) {
		return Commit(ctx, patcher, old, updated)
	}
	if equality.Semantic.DeepEqual(old, updated) {
		return updated, nil
	}
	from, fromStatus, err := split(old)
	if err != nil {
		return old, err
	}
	to, toStatus, err := split(updated)
	if err != nil {
		return old, err
	}
	diff, status := difference(from, to), difference(fromStatus, toStatus)
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
		return old, fmt.Errorf("writing %s: %w", client.KeyFor(old), err)
	}
	written, _ := reflect.TypeAssert[T](reflect.New(reflect.TypeOf(old).Elem()))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, written); err != nil {
		return old, fmt.Errorf("reading %s: %w", client.KeyFor(old), err)
	}
	return written, nil
}

// mayEnd reports whether the change of an object's finalizers may be the end of it, or come too
// late for that.
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
