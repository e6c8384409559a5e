package versions

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/shardplane/shardplane/pkg/request"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// Replicas writes objects unchanged and deletes them immediately. A missing UID or creation time is taken from
// the annotation with the original's UID or from the replaced object, or generated.
type Replicas struct {
	store *genericregistry.Store
}

var errNoReplica = errors.New("the stored object is not a custom resource")

var (
	_ rest.GracefulDeleter   = &Replicas{}
	_ rest.CollectionDeleter = &Replicas{}
)

// Create stores a replica. It may change obj.
func (r *Replicas) Create(ctx context.Context, obj *unstructured.Unstructured, dryRun bool) (runtime.Object, error) {
	key, err := r.store.KeyFunc(ctx, obj.GetName())
	if err != nil {
		return nil, err
	}
	complete(obj, uuid.NewUUID(), metav1.Now())
	if err := multitenant.Annotate(ctx, obj); err != nil {
		return nil, err
	}
	out := r.store.NewFunc()
	err = r.store.Storage.Create(ctx, key, obj, out, 0, dryRun)
	return out, storeerr.InterpretCreateError(err, r.store.DefaultQualifiedResource, obj.GetName())
}

// Replace replaces the replica with the name, the resource version and, if set, the UID of obj.
func (r *Replicas) Replace(ctx context.Context, obj *unstructured.Unstructured, dryRun bool) (runtime.Object, error) {
	resource, name := r.store.DefaultQualifiedResource, obj.GetName()
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	preconditions := &storage.Preconditions{ResourceVersion: new(obj.GetResourceVersion())}
	if uid := obj.GetUID(); uid != "" {
		preconditions.UID = &uid
	}
	out := r.store.NewFunc()
	err = r.store.Storage.GuaranteedUpdate(ctx, key, out, false, preconditions, storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
		before, ok := existing.(*unstructured.Unstructured)
		if !ok {
			return nil, apierrors.NewInternalError(errNoReplica)
		}
		after := obj.DeepCopy()
		complete(after, before.GetUID(), before.GetCreationTimestamp())
		return after, multitenant.Annotate(ctx, after)
	}), dryRun, nil)
	return out, storeerr.InterpretUpdateError(err, resource, name)
}

// complete sets a missing UID and creation time.
func complete(obj *unstructured.Unstructured, uid types.UID, created metav1.Time) {
	if obj.GetUID() == "" {
		if original := obj.GetAnnotations()[request.OriginalUIDAnnotation]; original != "" {
			uid = types.UID(original)
		}
		obj.SetUID(uid)
	}
	if at := obj.GetCreationTimestamp(); at.IsZero() {
		obj.SetCreationTimestamp(created)
	}
}

// Delete implements rest.GracefulDeleter. It ignores finalizers, because they belong to the original.
func (r *Replicas) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	preconditions := &storage.Preconditions{}
	if requested := options.Preconditions; requested != nil {
		preconditions.UID, preconditions.ResourceVersion = requested.UID, requested.ResourceVersion
	}
	err = r.store.Storage.Delete(ctx, key, r.store.NewFunc(), preconditions, storage.ValidateObjectFunc(validate), dryrun.IsDryRun(options.DryRun), nil, storage.DeleteOptions{})
	return nil, err == nil, storeerr.InterpretDeleteError(err, r.store.DefaultQualifiedResource, name)
}

// DeleteCollection implements rest.CollectionDeleter.
func (r *Replicas) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	found, err := r.store.List(ctx, list)
	if err != nil {
		return nil, err
	}
	replicas, ok := found.(*unstructured.UnstructuredList)
	if !ok {
		return nil, apierrors.NewInternalError(errNoReplica)
	}
	for i := range replicas.Items {
		in := genericapirequest.WithNamespace(ctx, replicas.Items[i].GetNamespace())
		if _, _, err := r.Delete(in, replicas.Items[i].GetName(), validate, options); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return found, nil
}
