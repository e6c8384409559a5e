// Package apikinds is the admission plugin for the kinds of apis.kcp.io. It completes and validates exports
// and bindings. Users need the verb bind on an export to create objects that use it: APIBindings,
// WorkspaceTypes with default bindings, and endpoint slices. Endpoint slices disclose the consumers of an
// export.
//
// The response is the same for exports that do not exist and for exports that the user may not bind.
package apikinds

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/apis"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	apirules "github.com/shardplane/shardplane/pkg/apis"
	compiled "github.com/shardplane/shardplane/pkg/apis/conversions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// NewAPIKinds returns the plugin.
func NewAPIKinds(c Config) percluster.Plugin {
	return percluster.Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), Admits: c.admit, Validates: c.validate}
}

func (c Config) admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, old, ok := objectsOf(a)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	switch resource := a.GetResource().Resource; {
	case resource != exports && resource != bindings:
	case old != nil:
		keep(object, old)
		apirules.KeepSpec(object, old)
	default:
		c.complete(ctx, a.GetUserInfo(), cluster, resource, object)
	}
	return nil
}

// complete sets the metadata that the server manages on a new export or binding.
func (c Config) complete(ctx context.Context, u user.Info, cluster logicalcluster.Name, resource string, object *unstructured.Unstructured) {
	annotations := object.GetAnnotations()
	for _, key := range statusAnnotations {
		delete(annotations, key) // it has no status yet
	}
	object.SetAnnotations(annotations)
	if resource == bindings {
		export, _, _ := unstructured.NestedString(object.Object, "spec", "reference", "export", "name")
		path, _, _ := unstructured.NestedString(object.Object, "spec", "reference", "export", "path")
		label := ""
		if provider, ok, err := c.reference(ctx, u, cluster, path, export); ok && err == nil {
			label = apirules.ExportLabelValue(provider, export)
		}
		apirules.Complete(object, "", label)
	}
}

// statusAnnotations contain parts of the status of a binding.
var statusAnnotations = slices.Concat(apirules.StatusAnnotations, apirules.V1alpha1StatusAnnotations)

// keep restores the metadata that the server has set and a client dropped, e.g. by replacing an object.
func keep(object, old *unstructured.Unstructured) {
	annotations, labels := object.GetAnnotations(), object.GetLabels()
	before := old.GetAnnotations()
	for _, key := range statusAnnotations {
		if value, ok := before[key]; ok {
			set(&annotations, key, value)
		} else {
			delete(annotations, key)
		}
	}
	if value := old.GetLabels()[apirules.ExportLabel]; labels[apirules.ExportLabel] == "" && value != "" {
		set(&labels, apirules.ExportLabel, value)
		object.SetLabels(labels)
	}
	object.SetAnnotations(annotations)
}

func set(in *map[string]string, key, value string) {
	if *in == nil {
		*in = map[string]string{}
	}
	(*in)[key] = value
}

func (c Config) validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == workspaceTypes && a.GetSubresource() == "" {
		return c.checkType(ctx, a)
	}
	if resource := a.GetResource().GroupResource(); resource.Group == cachev1alpha1.SchemeGroupVersion.Group && cachedSlices[resource.Resource] != "" {
		return c.checkCachedSlice(ctx, a, cachedSlices[resource.Resource])
	}
	object, old, ok := objectsOf(a)
	if !ok {
		return nil
	}
	if err := percluster.Invalid(a, apirules.Validate(ctx, object, old)); err != nil {
		return err
	}
	if a.GetSubresource() != "" {
		return nil
	}
	resource := a.GetResource().Resource
	if resource == conversions {
		return c.checkConversion(ctx, a, object, old)
	}
	if old != nil {
		return checkKept(a, object, old)
	}
	switch resource {
	case bindings:
		return c.checkBinding(ctx, a, object)
	case endpointSlices:
		_, err := c.mayBind(ctx, a, object, "spec", "export")
		return err
	default:
		return nil
	}
}

// checkBinding also rejects changes by webhooks or policies of the metadata that admit has set.
func (c Config) checkBinding(ctx context.Context, a admission.Attributes, object *unstructured.Unstructured) error {
	label, err := c.mayBind(ctx, a, object, "spec", "reference", "export")
	if err != nil {
		return err
	}
	var changed string
	switch {
	case object.GetLabels()[apirules.ExportLabel] != label:
		changed = "labels[" + apirules.ExportLabel + "]"
	case !slices.Contains(object.GetFinalizers(), apirules.BindingFinalizer):
		changed = "finalizers[" + apirules.BindingFinalizer + "]"
	default:
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("metadata.%s is set by the system: webhooks and policies must not change it", changed))
}

// checkKept rejects changes of the annotations that contain status.
func checkKept(a admission.Attributes, object, old *unstructured.Unstructured) error {
	for _, key := range statusAnnotations {
		if object.GetAnnotations()[key] != old.GetAnnotations()[key] {
			return admission.NewForbidden(a, fmt.Errorf("metadata.annotations[%s] is part of the status: webhooks and policies must not change it", key))
		}
	}
	return nil
}

func objectsOf(a admission.Attributes) (object, old *unstructured.Unstructured, ok bool) {
	if a.GetResource().Group != apis.GroupName {
		return nil, nil, false
	}
	object, ok = a.GetObject().(*unstructured.Unstructured)
	if a.GetOperation() == admission.Update {
		old, _ = a.GetOldObject().(*unstructured.Unstructured)
	}
	return object, old, ok && object != nil && object.GroupVersionKind().Group == apis.GroupName
}

// maxDefaultBindings is the maximum number of default bindings of a workspace type. All of them are bound in
// each workspace of the type, and of each type that extends it.
//
//reference:limit object | WorkspaceType: default API bindings | 422
const maxDefaultBindings = 64

var workspaceTypes = schema.GroupResource{Group: tenancyv1alpha1.SchemeGroupVersion.Group, Resource: "workspacetypes"}

// checkType rejects a WorkspaceType with new default bindings that the user may not bind, because the system
// creates these bindings in all workspaces of the type. The exports need not exist yet.
func (c Config) checkType(ctx context.Context, a admission.Attributes) error {
	cluster, _ := request.ClusterNameFrom(ctx)
	refs, err := defaultBindingsOf(a.GetObject())
	if err != nil {
		return err
	}
	var before []tenancyv1alpha1.APIExportReference
	if a.GetOperation() == admission.Update {
		if before, err = defaultBindingsOf(a.GetOldObject()); err != nil {
			return err
		}
	}
	if err := percluster.Invalid(a, checkDefaultBindings(refs, before)); err != nil {
		return err
	}
	if u := a.GetUserInfo(); u == nil || identity.Administers(ctx, u) {
		return nil
	}
	for _, ref := range refs {
		if slices.Contains(before, ref) {
			continue
		}
		if _, _, err := c.mayBindOne(ctx, a, cluster, ref.Path, ref.Export); err != nil {
			return err
		}
	}
	return nil
}

// checkDefaultBindings validates the default bindings of a type, except those that it had before.
func checkDefaultBindings(refs, before []tenancyv1alpha1.APIExportReference) field.ErrorList {
	at := field.NewPath("spec", "defaultAPIBindings")
	if len(refs) > max(maxDefaultBindings, len(before)) {
		return field.ErrorList{field.TooMany(at, len(refs), maxDefaultBindings)}
	}
	var errs field.ErrorList
	for i, ref := range refs {
		if slices.Contains(before, ref) {
			continue
		}
		for _, message := range validation.IsDNS1123Subdomain(ref.Export) {
			errs = append(errs, field.Invalid(at.Index(i).Child("export"), ref.Export, message))
		}
	}
	return errs
}

func defaultBindingsOf(object runtime.Object) ([]tenancyv1alpha1.APIExportReference, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok || u == nil {
		return nil, nil
	}
	wt := &tenancyv1alpha1.WorkspaceType{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, wt); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the WorkspaceType: %v", err))
	}
	return wt.Spec.DefaultAPIBindings, nil
}

// checkConversion validates an APIConversion against its schema. If that is created later, the binding reports errors.
func (c Config) checkConversion(ctx context.Context, a admission.Attributes, object, old *unstructured.Unstructured) error {
	if old != nil && equality.Semantic.DeepEqual(object.Object["spec"], old.Object["spec"]) {
		return nil
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	schema, err := c.Schema(ctx, cluster, object.GetName())
	if err != nil {
		return request.Unavailable(fmt.Sprintf("cannot read the APIResourceSchema %s, try again: %v", object.GetName(), err))
	}
	if schema == nil {
		return nil
	}
	var conversion apisv1alpha1.APIConversion
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &conversion); err != nil {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Invalid(field.NewPath("spec"), a.GetName(), err.Error())})
	}
	crd, errs := apirules.Definition(schema)
	if len(errs) > 0 {
		return nil // the binding reports an invalid schema
	}
	_, errs = compiled.Compile(&crd.Spec, &conversion.Spec, environment.NewExpressions)
	return percluster.Invalid(a, append(errs, compiled.ValidateSelectable(&crd.Spec, &conversion.Spec)...))
}

// cachedSlices maps endpoint slices of cached resources to the field of their spec with the name.
var cachedSlices = map[string]string{
	"cachedresourceendpointslices":        "cachedResource",
	"clustercachedresourceendpointslices": "clusterCachedResource",
}

// checkCachedSlice rejects the creation of an endpoint slice of a cached resource if the user may not bind its
// export, because the slice discloses the consumers of the export. The cached resource must be in the same
// workspace.
func (c Config) checkCachedSlice(ctx context.Context, a admission.Attributes, of string) error {
	object, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || a.GetSubresource() != "" || a.GetOperation() != admission.Create {
		return nil // the CustomResourceDefinition makes references immutable
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	path, _, _ := unstructured.NestedString(object.Object, "spec", of, "path")
	if canonical, known := c.PathOf(cluster); path != "" && path != cluster.String() && (!known || path != canonical) {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("spec", of, "path"), path, "must be the path of this workspace, or empty: create the slice in the workspace of the cached resource"),
		})
	}
	for _, fields := range [][]string{{"spec", of, "name"}, {"spec", "export", "name"}} {
		if name, _, _ := unstructured.NestedString(object.Object, fields...); name == "" {
			return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Required(field.NewPath(fields[0], fields[1:]...), "specify the cached resource of the slice, and the APIExport that offers it")})
		}
	}
	_, err := c.mayBind(ctx, a, object, "spec", "export")
	return err
}

const (
	exports        = "apiexports"
	conversions    = "apiconversions"
	bindings       = "apibindings"
	endpointSlices = "apiexportendpointslices"
)

// Config configures the plugin.
type Config struct {
	// Resolve returns the logical cluster at a path, or "" if it is not known. known reports whether the
	// export can be bound; on this shard, it need not exist. It returns an error if this cannot be
	// determined now.
	Resolve func(path logicalcluster.Path, export string) (cluster logicalcluster.Name, known bool, err error)
	// Find returns the logical cluster at a path on any shard, or "". It sends requests to other shards, so
	// it must be used for administrators only: its duration discloses which paths exist.
	Find func(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error)
	// Current returns an error while the information that Resolve uses is incomplete.
	Current func() error
	// PathOf returns the path of a logical cluster for error messages, if it is known.
	PathOf func(cluster logicalcluster.Name) (string, bool)
	// MayBind reports whether a user may bind an export of a logical cluster, which need not exist.
	MayBind func(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error)
	// Schema returns an APIResourceSchema, or nil if there is none.
	Schema func(ctx context.Context, cluster logicalcluster.Name, name string) (*apirules.APIResourceSchema, error)
}

// mayBind rejects users who may not bind the export of an object, and returns the value of the export label.
func (c Config) mayBind(ctx context.Context, a admission.Attributes, object *unstructured.Unstructured, fields ...string) (string, error) {
	cluster, _ := request.ClusterNameFrom(ctx)
	path, _, _ := unstructured.NestedString(object.Object, append(slices.Clone(fields), "path")...)
	export, _, _ := unstructured.NestedString(object.Object, append(slices.Clone(fields), "name")...)
	provider, found, err := c.mayBindOne(ctx, a, cluster, path, export)
	if err == nil && !found {
		err = c.denied(a, cluster, path, export)
	}
	return apirules.ExportLabelValue(provider, export), err
}

// mayBindOne rejects users who may not bind an export; found is false if they may but it does not exist.
func (c Config) mayBindOne(ctx context.Context, a admission.Attributes, cluster logicalcluster.Name, path, export string) (provider logicalcluster.Name, found bool, err error) {
	u := a.GetUserInfo()
	provider, found, unknown := c.reference(ctx, u, cluster, path, export)
	may := u == nil || identity.Administers(ctx, u)
	if !may {
		// Permissions that a virtual workspace grants do not count: a user must not create a binding through a virtual
		// workspace that the user could not create otherwise. Logical clusters that do not exist take the same path,
		// including errors, because otherwise the response or its time would disclose which exports exist.
		if may, err = c.MayBind(ctx, identity.WithoutWarrant(u), provider, export); err != nil {
			unknown = cmp.Or(unknown, err)
		}
		if !may && path != "" {
			unknown = cmp.Or(unknown, c.Current()) // the denial could be due to missing data
		}
	}
	switch {
	case unknown != nil:
		return provider, found, request.Unavailable(fmt.Sprintf("cannot determine whether export %s may be bound, try again: %v", export, unknown))
	case !may:
		return provider, found, c.denied(a, cluster, path, export)
	}
	return provider, found, nil
}

func (c Config) denied(a admission.Attributes, cluster logicalcluster.Name, path, export string) error {
	if path == "" {
		path = cluster.String()
		if canonical, known := c.PathOf(cluster); known {
			path = canonical
		}
	}
	err := fmt.Errorf("no permission to bind to export %s:%s", path, export)
	if a.GetResource().Resource == bindings {
		err = fmt.Errorf("unable to create APIBinding: %w", err) // kcp's clients compare the text
	}
	return admission.NewForbidden(a, err)
}

// reference returns the logical cluster of an export that an object in cluster refers to, and whether the
// export can be bound. If the path does not exist, provider is a name that no logical cluster has.
// Administrators can also bind an export that does not exist yet, in any logical cluster.
func (c Config) reference(ctx context.Context, u user.Info, cluster logicalcluster.Name, path, export string) (provider logicalcluster.Name, found bool, err error) {
	if path == "" {
		return cluster, export != "", nil
	}
	provider, found, err = c.Resolve(logicalcluster.NewPath(path), export)
	if !found && u != nil && identity.Administers(ctx, u) {
		if provider == "" {
			provider, err = c.Find(ctx, logicalcluster.NewPath(path))
		}
		found = provider != ""
	}
	return cmp.Or(provider, logicalcluster.Name(path+":-")), found && export != "", err
}
