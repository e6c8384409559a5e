package versions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// coreStandIn is a group for objects of the core group, used only while upstream's strategy validates them.
const coreStandIn = "core.invalid"

// coreStrategy wraps upstream's strategy for custom resources for the core group. Upstream's validation
// requires an apiVersion with a group. Therefore upstream validates metadata and scale of a copy in a stand-in
// group. The schema and its rules, which may read the apiVersion, validate the original object.
type coreStrategy struct {
	rest.RESTCreateUpdateStrategy // upstream's for the stand-in, without a schema

	gvk    schema.GroupVersionKind
	rules  *definitions.Rules
	status bool
	// replicas is set if generations are copied from the originals.
	replicas bool
}

func (s *coreStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTCreateUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	if u, ok := obj.(*unstructured.Unstructured); ok && s.replicas {
		if before, ok := old.(*unstructured.Unstructured); ok {
			u.SetGeneration(before.GetGeneration())
		}
	}
}

func (s *coreStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return s.validate(ctx, obj, nil)
}

func (s *coreStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	before, ok := old.(*unstructured.Unstructured)
	if !ok {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not a custom resource", old))}
	}
	return s.validate(ctx, obj, before)
}

func (s *coreStrategy) validate(ctx context.Context, obj runtime.Object, old *unstructured.Unstructured) field.ErrorList {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not a custom resource", obj))}
	}
	// Admission may have changed the type; the schema does not validate it.
	errs := s.typeErrors(u)
	if len(errs) == 0 {
		errs = s.shapeErrors(ctx, u, old)
	}
	return append(errs, s.rules.Errors(ctx, u.Object, contentOf(old), errs, s.status)...)
}

// contentOf returns the content of an object, or nil without one.
func contentOf(u *unstructured.Unstructured) map[string]any {
	if u == nil {
		return nil
	}
	return u.Object
}

func (s *coreStrategy) typeErrors(u *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	if u.GetKind() != s.gvk.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), u.GetKind(), "must be "+s.gvk.Kind))
	}
	if want := s.gvk.GroupVersion().String(); u.GetAPIVersion() != want {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), "must be "+want))
	}
	return errs
}

// shapeErrors validates metadata, schema and scale.
func (s *coreStrategy) shapeErrors(ctx context.Context, u, old *unstructured.Unstructured) field.ErrorList {
	var upstreamErrs field.ErrorList
	if old == nil {
		upstreamErrs = s.RESTCreateUpdateStrategy.Validate(ctx, s.standIn(u))
	} else {
		upstreamErrs = s.RESTCreateUpdateStrategy.ValidateUpdate(ctx, s.standIn(u), s.standIn(old))
	}
	// Names of roles and their bindings may be any path segment.
	if s.gvk.Group == rbacv1.GroupName && len(content.IsPathSegmentName(u.GetName())) == 0 {
		upstreamErrs = slices.DeleteFunc(upstreamErrs, func(err *field.Error) bool { return err.Field == "metadata.name" })
	}
	scale := slices.IndexFunc(upstreamErrs, func(err *field.Error) bool { return !strings.HasPrefix(err.Field, "metadata") })
	if scale < 0 {
		scale = len(upstreamErrs)
	}
	return slices.Concat(upstreamErrs[:scale], s.rules.ShapeErrors(u.Object, contentOf(old), s.status), upstreamErrs[scale:])
}

// standIn returns a shallow copy of an object in the stand-in group, for upstream.
func (s *coreStrategy) standIn(u *unstructured.Unstructured) *unstructured.Unstructured {
	shown := maps.Clone(u.Object)
	shown["apiVersion"] = coreStandIn + "/" + s.gvk.Version
	return &unstructured.Unstructured{Object: shown}
}

// CoreWriter writes objects that the upstream handler cannot write: those of the core group, which it
// considers invalid, and those of a server of replicas. It belongs to a version store and is closed with it.
type CoreWriter struct {
	// Objects serves the objects. Status and Scale are their subresources, or nil.
	Objects interface {
		rest.Creater
		rest.Patcher
	}
	Status, Scale rest.Patcher
	// Replicas writes objects as copies of others.
	Replicas *Replicas

	mu     sync.Mutex
	scopes map[string]*handlers.RequestScope // by subresource
}

// Scope returns the upstream handler's request scope for a subresource, or for the objects if it is empty. It
// calls build once.
func (w *CoreWriter) Scope(ctx context.Context, subresource string, build func(context.Context) (*handlers.RequestScope, error)) (*handlers.RequestScope, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, ok := w.scopes[subresource]; ok {
		return known, nil
	}
	scope, err := build(ctx)
	if err == nil {
		w.scopes[subresource] = scope
	}
	return scope, err
}

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
