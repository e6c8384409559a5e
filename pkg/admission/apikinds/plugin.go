// Package apikinds is the admission plugin for the kinds of apis.kcp.io. It gives new
// exports and bindings what the server knows of them, refuses what is not valid, and
// lets only those bind an export who may: who has the verb bind on it where it is. Workspace
// types bind as well, in the workspaces that are made of them: so who writes one is asked, and
// endpoint slices tell of an export's consumers, those of cached resources (cache.kcp.io) too.
//
// Of exports that do not exist it says the same as of those that may not be bound.
package apikinds

import (
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
)

// Plugin implements admission.MutationInterface and admission.ValidationInterface.
type Plugin struct {
	*admission.Handler
	binder
}

var (
	_ admission.MutationInterface   = &Plugin{}
	_ admission.ValidationInterface = &Plugin{}
)

// New returns the plugin.
func New(config Config) *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), binder: binder{config}}
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
