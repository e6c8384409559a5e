// Package apikinds is the admission plugin for the kinds of apis.kcp.io. It gives new
// exports and bindings what the server knows of them, refuses what is not valid, and
// lets only those bind an export who may: who has the verb bind on it where it is. Workspace
// types bind as well, in the workspaces that are made of them: so who writes one is asked, and
// endpoint slices tell of an export's consumers, those of cached resources (cache.kcp.io) too.
//
// Of exports that do not exist it says the same as of those that may not be bound.
package apikinds

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/apis"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	apirules "github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	exports        = "apiexports"
	conversions    = "apiconversions"
	bindings       = "apibindings"
	endpointSlices = "apiexportendpointslices"
)

// Config is what the plugin asks.
type Config struct {
	// Resolve returns the logical cluster at a path, "" if it is not known, and whether the
	// export can be bound there, as far as is known. Its error says that this is not known now.
	Resolve func(path logicalcluster.Path, export string) (cluster logicalcluster.Name, known bool, err error)
	// Find returns the logical cluster at a path, "" if there is none, on whichever shard. It asks
	// other shards, so that it is for administrators only: the time would disclose what exists.
	Find func(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error)
	// Current is the error of Resolve for all that is not known, as long as there may be more.
	Current func() error
	// PathOf returns the path of a logical cluster, if it has one, for what users are told.
	PathOf func(cluster logicalcluster.Name) (string, bool)
	// MayBind reports whether a user may bind an export of a logical cluster, which
	// need not exist. Its error says that this could not be found out.
	MayBind func(ctx context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error)
	// Schema returns an APIResourceSchema, or nil if there is none.
	Schema func(ctx context.Context, cluster logicalcluster.Name, name string) (*apirules.APIResourceSchema, error)
}

// Plugin implements admission.MutationInterface and admission.ValidationInterface.
type Plugin struct {
	*admission.Handler
	config Config
}

var (
	_ admission.MutationInterface   = &Plugin{}
	_ admission.ValidationInterface = &Plugin{}
)

// New returns the plugin.
func New(config Config) *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), config: config}
}

// Admit implements admission.MutationInterface.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, old, ok := objectsOf(a)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	switch resource := a.GetResource().Resource; {
	case resource != exports && resource != bindings:
	case old != nil:
		keep(object, old)
		apirules.KeepSpec(object, old)
	default:
		p.complete(ctx, a.GetUserInfo(), cluster, resource, object)
	}
	return nil
}

// complete gives a new export or binding what the server knows of it.
func (p *Plugin) complete(ctx context.Context, u user.Info, cluster logicalcluster.Name, resource string, object *unstructured.Unstructured) {
	annotations := object.GetAnnotations()
	for _, key := range statusAnnotations {
		delete(annotations, key) // it has no status yet
	}
	if len(annotations) > 0 || object.GetAnnotations() != nil {
		object.SetAnnotations(annotations)
	}
	if resource == bindings {
		export, _, _ := unstructured.NestedString(object.Object, "spec", "reference", "export", "name")
		path, _, _ := unstructured.NestedString(object.Object, "spec", "reference", "export", "path")
		label := ""
		if provider, ok, err := p.reference(ctx, u, cluster, path, export); ok && err == nil {
			label = apirules.ExportLabelValue(provider, export)
		}
		apirules.Complete(object, "", label)
	}
}

// statusAnnotations have parts of the status of a binding.
var statusAnnotations = slices.Concat(apirules.StatusAnnotations, apirules.V1alpha1StatusAnnotations)

// keep gives a changed object back what the server has given it and the client left
// out, as clients do that replace objects by what they have in a file. The annotations
// with parts of the status are the status: clients cannot write them.
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
	if len(annotations) > 0 || object.GetAnnotations() != nil {
		object.SetAnnotations(annotations)
	}
}

func set(in *map[string]string, key, value string) {
	if *in == nil {
		*in = map[string]string{}
	}
	(*in)[key] = value
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == workspaceTypes && a.GetSubresource() == "" {
		return p.checkType(ctx, a)
	}
	if resource := a.GetResource().GroupResource(); resource.Group == cachev1alpha1.SchemeGroupVersion.Group && cachedSlices[resource.Resource] != "" {
		return p.checkCachedSlice(ctx, a, cachedSlices[resource.Resource])
	}
	object, old, ok := objectsOf(a)
	if !ok {
		return nil
	}
	if errs := apirules.Validate(ctx, object, old); len(errs) > 0 {
		return request.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
	}
	if a.GetSubresource() != "" {
		return nil
	}
	resource := a.GetResource().Resource
	if resource == conversions {
		return p.checkConversion(ctx, a, object, old)
	}
	if old != nil {
		return checkKept(a, object, old)
	}
	switch resource {
	case bindings:
		return p.checkBinding(ctx, a, object)
	case endpointSlices:
		_, err := p.mayBind(ctx, a, object, "spec", "export")
		return err
	default:
		return nil
	}
}

// checkBinding lets those make a binding who may bind its export, and looks whether
// nobody has changed what Admit gave it.
func (p *Plugin) checkBinding(ctx context.Context, a admission.Attributes, object *unstructured.Unstructured) error {
	label, err := p.mayBind(ctx, a, object, "spec", "reference", "export")
	if err != nil {
		return err
	}
	if object.GetLabels()[apirules.ExportLabel] != label {
		return admission.NewForbidden(a, fmt.Errorf("metadata.labels[%s] is set by the system: let webhooks and policies leave it alone", apirules.ExportLabel))
	}
	if !slices.Contains(object.GetFinalizers(), apirules.BindingFinalizer) {
		return admission.NewForbidden(a, fmt.Errorf("metadata.finalizers[%s] is set by the system: let webhooks and policies leave it alone", apirules.BindingFinalizer))
	}
	return nil
}

// checkKept wants the annotations that are parts of the status to be as they were.
func checkKept(a admission.Attributes, object, old *unstructured.Unstructured) error {
	for _, key := range statusAnnotations {
		if object.GetAnnotations()[key] != old.GetAnnotations()[key] {
			return admission.NewForbidden(a, fmt.Errorf("metadata.annotations[%s] is part of the status: let webhooks and policies leave it alone", key))
		}
	}
	return nil
}

// mayBind refuses those who may not bind the export that an object refers to. It
// returns the value of the label of the export's bindings.
func (p *Plugin) mayBind(ctx context.Context, a admission.Attributes, object *unstructured.Unstructured, fields ...string) (string, error) {
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return "", apierrors.NewInternalError(err)
	}
	path, _, _ := unstructured.NestedString(object.Object, append(slices.Clone(fields), "path")...)
	export, _, _ := unstructured.NestedString(object.Object, append(slices.Clone(fields), "name")...)
	provider, found, err := p.mayBindOne(ctx, a, cluster, path, export)
	if err == nil && !found {
		err = p.denied(a, cluster, path, export)
	}
	return apirules.ExportLabelValue(provider, export), err
}

// mayBindOne refuses those who may not bind an export. Whoever may need not find it: then
// found is false.
func (p *Plugin) mayBindOne(ctx context.Context, a admission.Attributes, cluster logicalcluster.Name, path, export string) (provider logicalcluster.Name, found bool, err error) {
	u := a.GetUserInfo()
	provider, found, unknown := p.reference(ctx, u, cluster, path, export)
	may := u == nil || identity.Administers(ctx, u)
	if !may {
		// What a virtual workspace permits does not count: a binding that is created through one
		// must be one that its creator could create otherwise. Logical clusters that do not exist are
		// treated alike, errors included, because otherwise the answer or its time would disclose
		// which exports exist.
		if may, err = p.config.MayBind(ctx, identity.WithoutView(u), provider, export); err != nil {
			unknown = cmp.Or(unknown, err)
		}
		if !may && path != "" {
			unknown = cmp.Or(unknown, p.config.Current()) // as of what is not known
		}
	}
	switch {
	case unknown != nil:
		return provider, found, request.Unavailable(fmt.Sprintf("cannot find out whether export %s may be bound, try again: %v", export, unknown))
	case !may:
		return provider, found, p.denied(a, cluster, path, export)
	}
	return provider, found, nil
}

func (p *Plugin) denied(a admission.Attributes, cluster logicalcluster.Name, path, export string) error {
	if path == "" {
		path = cluster.String()
		if canonical, known := p.config.PathOf(cluster); known {
			path = canonical
		}
	}
	err := fmt.Errorf("no permission to bind to export %s:%s", path, export)
	if a.GetResource().Resource == bindings {
		err = fmt.Errorf("unable to create APIBinding: %w", err) // kcp's clients compare the text
	}
	return admission.NewForbidden(a, err)
}

// reference returns the logical cluster of an export that an object in cluster refers to, and whether
// the export can be bound. If the path leads nowhere, provider is a name that no logical cluster has.
// Administrators can also bind an export that does not exist yet, in any logical cluster.
func (p *Plugin) reference(ctx context.Context, u user.Info, cluster logicalcluster.Name, path, export string) (provider logicalcluster.Name, found bool, err error) {
	if path == "" {
		return cluster, export != "", nil
	}
	provider, found, err = p.config.Resolve(logicalcluster.NewPath(path), export)
	if !found && u != nil && identity.Administers(ctx, u) {
		if provider == "" {
			provider, err = p.config.Find(ctx, logicalcluster.NewPath(path))
		}
		found = provider != ""
	}
	if provider == "" {
		provider = logicalcluster.Name(path + ":-")
	}
	return provider, found && export != "", err
}

// objectsOf returns the object of a kind of apis.kcp.io, and what it was before.
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
