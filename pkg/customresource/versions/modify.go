package versions

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
)

// Modify updates an object of a schema in the logical cluster of ctx in its stored version, without validation
// or admission. It calls change again after a conflict, and returns its errors. The error is NotFound if the
// object does not exist.
func (s *Stores) Modify(ctx context.Context, sch *definitions.Schema, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	v, key, done, err := s.storageOf(ctx, sch, name)
	defer done()
	if err != nil {
		return nil, err
	}
	written := &unstructured.Unstructured{}
	err = v.GuaranteedUpdate(ctx, key, written, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		u, ok := in.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("the storage of custom resources returned a %T", in)
		}
		return u, change(u)
	}), nil)
	return written, storeerr.InterpretUpdateError(err, sch.Resource, name)
}

// Create stores an object in its stored version in the logical cluster of ctx, including status and
// finalizers, without validation, admission or managed fields. The error is AlreadyExists if an object has the
// name.
func (s *Stores) Create(ctx context.Context, sch *definitions.Schema, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	v, key, done, err := s.storageOf(ctx, sch, object.GetName())
	defer done()
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(object)
	object.SetGeneration(1)
	written := &unstructured.Unstructured{}
	if err := v.Create(ctx, key, object, written, 0); err != nil {
		return nil, storeerr.InterpretCreateError(err, sch.Resource, object.GetName())
	}
	return written, nil
}

// Each calls visit for each stored object of a schema in the logical cluster of ctx.
func (s *Stores) Each(ctx context.Context, sch *definitions.Schema, visit func(*packed.Object)) error {
	v, key, done, err := s.storageOf(ctx, sch, "")
	defer done()
	if err != nil {
		return err
	}
	var stored packed.List
	if err := v.raw.GetList(ctx, key, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &stored); err != nil {
		return storeerr.InterpretListError(err, sch.Resource)
	}
	for i := range stored.Items {
		visit(&stored.Items[i])
	}
	return nil
}

// storageOf returns the store of the stored version of a schema, which may be used until done is called, and
// the key of an object, or the prefix of all keys if name is empty.
func (s *Stores) storageOf(ctx context.Context, sch *definitions.Schema, name string) (v *versionStore, key string, done func(), err error) {
	v, stored, done, err := s.open(sch, sch.StoredVersion())
	if err != nil {
		return nil, "", done, err
	}
	if name == "" {
		return v, stored.KeyRootFunc(ctx), done, nil
	}
	key, err = stored.KeyFunc(ctx, name)
	return v, key, done, err
}

// Empty deletes all objects of a schema, with its identity, in the logical cluster of ctx, and returns the
// remaining ones. It bypasses admission but respects finalizers. It uses only keys and metadata, so that it
// also deletes objects that cannot be read with the schema, e.g. because their version cannot be converted or
// their scope has changed.
func (s *Stores) Empty(ctx context.Context, sch *definitions.Schema) (definitions.Remaining, error) {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	v, root, done, err := s.storageOf(ctx, sch, "")
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
			err = v.raw.beginDeletion(ctx, key, &all.Items[i])
		}
		if err != nil {
			return definitions.Remaining{}, fmt.Errorf("deleting instances: %w", err)
		}
	}
	var rest packed.List
	if err := v.raw.GetList(ctx, root, everything, &rest); err != nil {
		return definitions.Remaining{}, fmt.Errorf("listing instances: %w", err)
	}
	remaining := definitions.Remaining{Objects: len(rest.Items), Finalizers: map[string]int{}}
	for i := range rest.Items {
		for _, f := range rest.Items[i].GetFinalizers() {
			remaining.Finalizers[f]++
		}
	}
	return remaining, nil
}

// beginDeletion deletes an object, or marks it as being deleted if it has finalizers. It ignores conflicts:
// the caller counts the remaining objects and retries.
func (s *rawStore) beginDeletion(ctx context.Context, key string, object *packed.Object) error {
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
