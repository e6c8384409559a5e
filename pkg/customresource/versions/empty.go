package versions

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
)

// Empty deletes all objects of a schema in the logical cluster of ctx, and of its identity, past
// admission but through their finalizers, and returns what is left. It uses keys and metadata only, so that
// it also deletes objects that cannot be read with the schema, e.g. because nothing converts the version in which they are
// stored, or their scope has changed.
func (s *Stores) Empty(ctx context.Context, sch *definitions.Schema) (definitions.Remaining, error) {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	v, root, done, err := s.place(ctx, sch, "")
	defer done()
	if err != nil {
		return definitions.Remaining{}, err
	}
	everything := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	var all packed.List
	if err := v.raw.GetList(ctx, root, everything, &all); err != nil {
		return definitions.Remaining{}, fmt.Errorf("listing instances: %w", err)
	}
	if len(all.Items) == 0 {
		return definitions.Remaining{}, nil
	}
	keyOf := keyFunc(root)
	for i := range all.Items {
		key, err := keyOf(&all.Items[i])
		if err == nil {
			err = v.raw.end(ctx, key, &all.Items[i])
		}
		if err != nil {
			return definitions.Remaining{}, fmt.Errorf("deleting instances: %w", err)
		}
	}
	var rest packed.List
	if err := v.raw.GetList(ctx, root, everything, &rest); err != nil {
		return definitions.Remaining{}, fmt.Errorf("listing instances: %w", err)
	}
	left := definitions.Remaining{Objects: len(rest.Items), Finalizers: map[string]int{}}
	for i := range rest.Items {
		for _, f := range rest.Items[i].GetFinalizers() {
			left.Finalizers[f]++
		}
	}
	return left, nil
}

// end deletes an object, or lets those who use its finalizers know that it is to be deleted. An object that
// changes at the same time may stay; the caller counts those and tries again.
func (s *rawStore) end(ctx context.Context, key string, object *packed.Object) error {
	uid, version := object.GetUID(), object.GetResourceVersion()
	same := &storage.Preconditions{UID: &uid, ResourceVersion: &version}
	var out packed.Object
	var err error
	switch {
	case len(object.GetFinalizers()) == 0:
		err = s.Delete(ctx, key, &out, same, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	case object.GetDeletionTimestamp() == nil:
		err = s.GuaranteedUpdate(ctx, key, &out, false, same, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
			stored, err := storedObject(in)
			if err != nil {
				return nil, err
			}
			u, now, seconds := stored.Unstructured(), metav1.NewTime(time.Now()), int64(0)
			u.SetDeletionTimestamp(&now)
			u.SetDeletionGracePeriodSeconds(&seconds)
			return u, nil
		}), nil)
	}
	if storage.IsNotFound(err) || storage.IsConflict(err) || storage.IsInvalidObj(err) {
		return nil
	}
	return err
}
