// Package cachedresource is the admission plugin for CachedResources and ClusterCachedResources. It rejects
// resources that can never be replicated, a second object for the same resource, and updates of the
// replicated resource or its identity.
package cachedresource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kcp-dev/sdk/apis/apis"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	apirules "github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// maxInCluster is limited because each takes connections of the shard and of the cache server.
//
//reference:limit cluster | CachedResources | 403
const maxInCluster = 64

// Config configures the plugin.
type Config struct {
	Clients *client.Factory
	// BuiltIn reports whether a resource is built in.
	BuiltIn func(ctx context.Context, resource schema.GroupResource) bool
	// Disabled rejects new objects.
	Disabled bool
}

var errDisabled = errors.New("the feature gate CachedResources of the shard is disabled")

// NewCachedResource returns the plugin.
func NewCachedResource(c Config) percluster.Plugin {
	return percluster.Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), Admits: admit, Validates: c.validate}
}

// admit restores the finalizer if a client replaces the object.
func admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, old, ok := objectsOf(a)
	u := a.GetUserInfo()
	if !ok || old == nil || u != nil && identity.MemberOf(ctx, u, user.SystemPrivilegedGroup) {
		return nil
	}
	const finalizer = cachev1alpha1.CachedResourceFinalizer
	if finalizers := object.GetFinalizers(); slices.Contains(old.GetFinalizers(), finalizer) && !slices.Contains(finalizers, finalizer) {
		object.SetFinalizers(append(finalizers, finalizer))
	}
	return nil
}

func (c Config) validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, old, ok := objectsOf(a)
	if !ok {
		return nil
	}
	cached, err := typed(object)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if old != nil {
		before, err := typed(old)
		if err != nil {
			return nil //nolint:nilerr // an object that cannot be decoded may be fixed
		}
		return percluster.Invalid(a, apirules.ValidateCachedResource(cached, before))
	}
	if c.Disabled {
		return admission.NewForbidden(a, errDisabled)
	}
	errs := apirules.ValidateCachedResource(cached, nil)
	if of := apirules.CachedResourceOf(cached); of.Group == apis.GroupName || c.BuiltIn(ctx, of.GroupResource()) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "resource"), fmt.Sprintf("%s is built in: only resources of CustomResourceDefinitions and of bound APIs can be replicated", of.GroupResource())))
	}
	if err := percluster.Invalid(a, errs); err != nil {
		return err
	}
	return c.checkNotCached(ctx, a, cached)
}

// checkNotCached rejects a resource that is cached already. The controller replicates one of concurrently created
// objects.
func (c Config) checkNotCached(ctx context.Context, a admission.Attributes, cached *cachev1alpha1.CachedResource) error {
	cluster, _ := request.ClusterNameFrom(ctx)
	count := 0
	for _, resource := range []client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]{kinds.CachedResources, kinds.ClusterCachedResources} {
		all, err := resource.In(c.Clients.Cluster(cluster.Path())).List(ctx, metav1.ListOptions{})
		if err != nil {
			return request.Unavailable(fmt.Sprintf("cannot list the cached resources, try again: %v", err))
		}
		for i := range all.Items {
			if count++; apirules.CachedResourceOf(&all.Items[i]) == apirules.CachedResourceOf(cached) {
				already := &apirules.CachedAlreadyError{Resource: apirules.CachedResourceOf(cached), By: apirules.Publisher{Resource: resource.Resource, Cluster: cluster, Name: all.Items[i].Name}}
				return admission.NewForbidden(a, fmt.Errorf("%w: delete or change that object first", already))
			}
		}
	}
	if count >= maxInCluster {
		return admission.NewForbidden(a, fmt.Errorf("the workspace has %d cached resources, at most %d allowed: delete one", count, maxInCluster))
	}
	return nil
}

func typed(object *unstructured.Unstructured) (*cachev1alpha1.CachedResource, error) {
	cached := &cachev1alpha1.CachedResource{}
	return cached, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, cached)
}

// objectsOf returns the new and the old object of a write of a cached resource, but not of its status.
func objectsOf(a admission.Attributes) (object, old *unstructured.Unstructured, ok bool) {
	resource := a.GetResource()
	if resource.Group != cachev1alpha1.SchemeGroupVersion.Group || resource.Resource != apirules.CachedResources && resource.Resource != apirules.ClusterCachedResources || a.GetSubresource() != "" {
		return nil, nil, false
	}
	object, ok = a.GetObject().(*unstructured.Unstructured)
	if a.GetOperation() == admission.Update {
		old, _ = a.GetOldObject().(*unstructured.Unstructured)
	}
	return object, old, ok && object != nil
}
