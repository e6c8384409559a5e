package definitions

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// Install registers apiextensions.k8s.io/v1 with a generic API server.
func (c *Storage) Install(server *genericapiserver.GenericAPIServer) error {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsserver.Scheme, metav1.ParameterCodec, apiextensionsserver.Codecs)
	info.PrioritizedVersions = []schema.GroupVersion{apiextensionsv1.SchemeGroupVersion}
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"customresourcedefinitions":        c,
		"customresourcedefinitions/status": c.status,
	}
	if err := server.InstallAPIGroup(&info); err != nil {
		return fmt.Errorf("installing %s: %w", apiextensions.GroupName, err)
	}
	return nil
}

// Storage is upstream's storage of definitions. It accepts names in the same write, and its writes return once
// this server serves the definition.
type Storage struct {
	*customresourcedefinition.REST
	status  *crdStatusStorage
	objects *Index
	names   *names
}

var (
	_ rest.StandardStorage    = (*Storage)(nil)
	_ rest.ShortNamesProvider = (*Storage)(nil)
	_ rest.Patcher            = (*crdStatusStorage)(nil)
)

// Config configures a Storage.
type Config struct {
	Storage func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter
	// Unreadable records the definitions that cannot be served.
	Unreadable *unreadable.Record
	Table      *Table
	// Sources are the sources that take precedence. New adds the index to them.
	Sources *Sources
	// BuiltInNames returns the names of the built-in resources of a group.
	BuiltInNames func(ctx context.Context, group string) ([]apiextensions.CustomResourceDefinitionNames, error)
}

// NewDefinitionStorage creates the storage. The caller must run its Index.
func NewDefinitionStorage(cfg Config) (*Storage, error) {
	interner := newInterner()
	codec := internCodec{
		Codec:    apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion),
		interner: interner,
	}
	getter := cfg.Storage(func(schema.GroupResource) (runtime.Codec, error) { return codec, nil })
	upstream, err := customresourcedefinition.NewREST(apiextensionsserver.Scheme, getter)
	if err != nil {
		return nil, fmt.Errorf("making the storage of definitions: %w", err)
	}
	store := *upstream.Store // a copy, because upstream counts objects with its own
	objects := newIndex(&store, cfg.Table, interner, cfg.Unreadable)
	cfg.Sources.index = objects
	objects.Subscribe(cfg.Sources.changes.Notify)
	naming := &names{sources: cfg.Sources, builtIn: cfg.BuiltInNames, objects: objects, reserved: map[nameScope]map[*reservation]struct{}{}}
	store.Storage.Storage = namingStorage{upstream.Storage.Storage, naming}
	strategy := definitionStrategy{customresourcedefinition.NewStrategy(apiextensionsserver.Scheme)}
	store.CreateStrategy = strategy
	store.UpdateStrategy = strategy
	c := &Storage{REST: &customresourcedefinition.REST{Store: &store}, objects: objects, names: naming}
	c.status = &crdStatusStorage{customresourcedefinition.NewStatusREST(apiextensionsserver.Scheme, c.REST), c}
	return c, nil
}

// definitionStrategy wraps upstream's. It rejects definitions for which upstream panics, and allows the groups
// of Kubernetes without a dot.
type definitionStrategy struct {
	rest.RESTCreateUpdateStrategy
}

func (s definitionStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return s.validate(ctx, obj, nil)
}

func (s definitionStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return s.validate(ctx, obj, old)
}

// validate validates a definition, and its change if old is not nil.
func (s definitionStrategy) validate(ctx context.Context, obj, old runtime.Object) (errs field.ErrorList) {
	defer refuseMalformed(ctx, obj, &errs)
	after, _ := obj.(*apiextensions.CustomResourceDefinition)
	before, _ := old.(*apiextensions.CustomResourceDefinition)
	return apis.ValidateDefinition(after, before, func(after, before *apiextensions.CustomResourceDefinition) field.ErrorList {
		if before == nil {
			return s.RESTCreateUpdateStrategy.Validate(ctx, after)
		}
		return s.RESTCreateUpdateStrategy.ValidateUpdate(ctx, after, before)
	})
}

// refuseMalformed rejects a definition for which upstream's validation panics, e.g. with selectable fields but
// without a schema.
func refuseMalformed(ctx context.Context, obj runtime.Object, errs *field.ErrorList) {
	r := recover()
	if r == nil {
		return
	}
	klog.FromContext(ctx).Info("Validation of a definition panicked", "panic", r)
	*errs = nil
	spec := field.NewPath("spec")
	if crd, ok := obj.(*apiextensions.CustomResourceDefinition); ok {
		for i := range crd.Spec.Versions {
			if validation, err := apiextensions.GetSchemaForVersion(crd, crd.Spec.Versions[i].Name); err == nil && (validation == nil || validation.OpenAPIV3Schema == nil) {
				*errs = append(*errs, field.Required(spec.Child("versions").Index(i).Child("schema", "openAPIV3Schema"), "schemas are required"))
			}
		}
	}
	if len(*errs) == 0 {
		*errs = field.ErrorList{field.Invalid(spec, field.OmitValueType{}, "is malformed and cannot be validated")}
	}
}

// Index returns the index of the stored definitions, which the caller must run.
func (c *Storage) Index() *Index { return c.objects }

// write calls do to write a definition, with its names reserved until this server serves it or do has failed.
func (c *Storage) write(ctx context.Context, dryRun []string, do func(context.Context) (runtime.Object, error)) (runtime.Object, error) {
	if !c.objects.waitSynced(ctx) {
		return nil, namesUnknown("the definitions are still being read")
	}
	if len(dryRun) > 0 {
		out, err := do(ctx)
		if err == nil {
			err = c.names.accept(ctx, out) // as the write would have
		}
		return out, err
	}
	reserved := &reservation{of: c.names}
	defer reserved.release()
	ctx = context.WithValue(ctx, reservationKey{}, reserved)
	out, err := do(ctx)
	if err != nil {
		return out, err
	}
	// Continues if the client disconnects, because the definition is stored.
	return c.written(context.WithoutCancel(ctx), out, reserved.given), nil
}

// written waits until this server serves a written definition, so that the client's next request finds it in
// effect. It returns the definition without names that another server gave to another API at the same time. It
// checks sources only if given is set.
func (c *Storage) written(ctx context.Context, obj runtime.Object, given bool) runtime.Object {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return obj
	}
	c.objects.waitFor(ctx, crd)
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil || isContested(ctx) || !crd.DeletionTimestamp.IsZero() {
		return obj
	}
	lost := c.names.lost(cluster, crd)
	if !lost && given {
		if lost, err = c.names.lostToSource(ctx, cluster, crd); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to check the names of a definition, deferring to its controller", "logicalCluster", cluster, "definition", crd.Name)
		}
	}
	if !lost {
		return obj
	}
	unchanged := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		return old.DeepCopyObject(), nil
	})
	yielded, _, err := c.REST.Update(contested(ctx), crd.Name, unchanged, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove conflicting names of a definition", "logicalCluster", cluster, "definition", crd.Name)
		return obj
	}
	return c.written(contested(ctx), yielded, false)
}

// Create implements rest.Creater.
func (c *Storage) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return c.write(ctx, options.DryRun, func(ctx context.Context) (runtime.Object, error) {
		return c.REST.Create(ctx, obj, validate, options)
	})
}

// Update implements rest.Updater.
func (c *Storage) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	out, err = c.write(ctx, options.DryRun, func(ctx context.Context) (runtime.Object, error) {
		out, created, err = c.REST.Update(ctx, name, info, create, update, forceCreate, options)
		return out, err
	})
	return out, created, err
}

// Delete implements rest.GracefulDeleter.
func (c *Storage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	out, deleted, err := c.REST.Delete(ctx, name, validate, options)
	if err == nil && !deleted && (options == nil || len(options.DryRun) == 0) {
		out = c.written(ctx, out, false)
	}
	return out, deleted, err
}

// DeleteCollection calls Delete for each definition. Upstream's does not, so that instances would be left.
func (c *Storage) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	obj, err := c.List(ctx, list)
	if err != nil {
		return nil, err
	}
	definitions, ok := obj.(*apiextensions.CustomResourceDefinitionList)
	if !ok {
		return nil, fmt.Errorf("listing definitions returned a %T", obj)
	}
	for i := range definitions.Items {
		var each *metav1.DeleteOptions // deleting changes the options
		if options != nil {
			each = options.DeepCopy()
		}
		if _, _, err := c.Delete(ctx, definitions.Items[i].Name, validate, each); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return definitions, nil
}

type crdStatusStorage struct {
	*customresourcedefinition.StatusREST
	crds *Storage
}

// Update implements rest.Updater. Clients cannot set accepted names.
func (s *crdStatusStorage) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	info = rest.WrapUpdatedObjectInfo(info, func(_ context.Context, obj, old runtime.Object) (runtime.Object, error) {
		crd, isCRD := obj.(*apiextensions.CustomResourceDefinition)
		if before, wasCRD := old.(*apiextensions.CustomResourceDefinition); isCRD && wasCRD {
			crd.Status.AcceptedNames = before.Status.AcceptedNames
		}
		return obj, nil
	})
	out, err = s.crds.write(ctx, options.DryRun, func(ctx context.Context) (runtime.Object, error) {
		out, created, err = s.StatusREST.Update(ctx, name, info, create, update, false, options)
		return out, err
	})
	return out, created, err
}

func (s *crdStatusStorage) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return s.crds.ConvertToTable(ctx, obj, options)
}

// namingStorage accepts names in the write itself, so that definitions rejected by validation or admission
// never have any.
type namingStorage struct {
	storage.Interface
	names *names
}

func (s namingStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.names.accept(ctx, obj); err != nil {
		return err
	}
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

func (s namingStorage) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions,
	tryUpdate storage.UpdateFunc, cached runtime.Object,
) error {
	accepted := func(old runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		obj, ttl, err := tryUpdate(old, meta)
		if err == nil {
			err = s.names.accept(ctx, obj)
		}
		return obj, ttl, err
	}
	return s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, accepted, cached)
}
