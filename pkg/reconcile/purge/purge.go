// Package purge deletes all objects of a namespace or of a logical cluster: all objects of all discovered resources,
// independently of the server that provides them.
//
// One round deletes objects without finalizers directly in the storage, then lists each resource that may have others, deletes
// those, and lists again. The remaining objects wait for finalizers. Outcome counts them, and the caller runs another
// round. If a resource cannot be listed or deleted, the round returns an error.
package purge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// pageSize is the page size of lists.
const pageSize = 500

// Resource is a resource with objects that can be deleted.
type Resource struct {
	schema.GroupVersionResource
	// Namespaced reports whether the resource is namespaced.
	Namespaced bool
	// Collection reports whether the resource supports deletecollection.
	Collection bool
}

// Discover returns the resources of a logical cluster that can be listed and deleted, each in its preferred version. If
// discovery fails partially, it returns the other resources and an error.
func Discover(ctx context.Context, client discovery.DiscoveryInterface) ([]Resource, error) {
	lists, err := discovery.ServerPreferredResourcesWithContext(ctx, discovery.ToDiscoveryInterfaceWithContext(client))
	if err != nil {
		err = fmt.Errorf("discovering the resources of the logical cluster: %w", err)
	}
	var resources []Resource
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			err = errors.Join(err, parseErr)
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") {
				continue // has no stored objects, e.g. a review
			}
			resources = append(resources, Resource{
				GroupVersionResource: gv.WithResource(r.Name), Namespaced: r.Namespaced,
				Collection: slices.Contains(r.Verbs, "deletecollection"),
			})
		}
	}
	return resources, err
}

// Stored gives access to the storage, bypassing the API, for operations that do not need a request for each kind or object.
type Stored struct {
	// Any reports which resources may have objects.
	Any Query
	// Free deletes objects without finalizers, and reports which resources may have others.
	Free Query
}

// Query returns a result for each resource in a logical cluster, or in one namespace of it if namespace is not empty.
type Query func(ctx context.Context, cluster logicalcluster.Name, namespace string, resources []schema.GroupResource) ([]bool, error)

// choose returns the resources for which the result is true. One query for all is cheaper than a request for each.
func (q Query) choose(ctx context.Context, cluster logicalcluster.Name, namespace string, resources []Resource) ([]Resource, error) {
	if len(resources) == 0 {
		return nil, nil
	}
	queried := make([]schema.GroupResource, len(resources))
	for i := range resources {
		queried[i] = resources[i].GroupResource()
	}
	chosen, err := q(ctx, cluster, namespace, queried)
	if err != nil {
		return nil, fmt.Errorf("checking for objects: %w", err)
	}
	var of []Resource
	for i := range resources {
		if chosen[i] {
			of = append(of, resources[i])
		}
	}
	return of, nil
}

// Outcome is the result of a round.
type Outcome struct {
	// Remaining is the number of objects that still exist, by resource.
	Remaining map[schema.GroupVersionResource]int
	// Finalizers is the number of objects that wait for each finalizer.
	Finalizers map[string]int
	// Err contains the errors of lists and deletions.
	Err error
}

// Done reports whether all objects have been deleted.
func (o Outcome) Done() bool { return o.Err == nil && len(o.Remaining) == 0 }

// Resources describes the remaining objects by resource in a fixed order; empty if there are none.
func (o Outcome) Resources() string {
	parts := make([]string, 0, len(o.Remaining))
	for gvr, count := range o.Remaining {
		parts = append(parts, fmt.Sprintf("%s has %d objects", gvr.GroupResource(), count))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// WaitingFor describes the remaining objects by finalizer in a fixed order; empty if none has finalizers.
func (o Outcome) WaitingFor() string {
	parts := make([]string, 0, len(o.Finalizers))
	for _, finalizer := range slices.Sorted(maps.Keys(o.Finalizers)) {
		parts = append(parts, fmt.Sprintf("%s in %d objects", finalizer, o.Finalizers[finalizer]))
	}
	return strings.Join(parts, ", ")
}

// Delete runs one round for the given resources of a logical cluster in one namespace, or in all if namespace is empty.
func Delete(ctx context.Context, client metadata.Interface, stored Stored, cluster logicalcluster.Name, namespace string, resources []Resource) Outcome {
	outcome := Outcome{Remaining: map[schema.GroupVersionResource]int{}, Finalizers: map[string]int{}}
	touched, err := Remove(ctx, client, stored, cluster, namespace, resources)
	errs := []error{err}
	remaining, err := stored.Any.choose(ctx, cluster, namespace, touched)
	errs = append(errs, err)
	for _, resource := range remaining {
		found, err := list(ctx, client.Resource(resource.GroupVersionResource), namespace)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", resource.GroupResource(), err))
		}
		if len(found) > 0 {
			outcome.Remaining[resource.GroupVersionResource] = len(found)
		}
		for i := range found {
			for _, finalizer := range found[i].Finalizers {
				outcome.Finalizers[finalizer]++
			}
		}
	}
	outcome.Err = errors.Join(errs...)
	return outcome
}

// Remove is Delete without determining the remaining objects. It returns the resources that may have had objects.
func Remove(ctx context.Context, client metadata.Interface, stored Stored, cluster logicalcluster.Name, namespace string, resources []Resource) (touched []Resource, err error) {
	resources, err = stored.Any.choose(ctx, cluster, namespace, resources)
	if err != nil {
		return nil, err
	}
	blocked, err := stored.Free.choose(ctx, cluster, namespace, resources)
	if err != nil {
		return resources, err
	}
	var errs []error
	for _, resource := range resources {
		if !slices.Contains(blocked, resource) {
			touched = append(touched, resource)
			continue
		}
		getter := client.Resource(resource.GroupVersionResource)
		found, err := list(ctx, getter, namespace)
		if err == nil {
			err = remove(ctx, getter, resource, found)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", resource.GroupResource(), err))
		}
		if len(found) > 0 {
			touched = append(touched, resource)
		}
	}
	return touched, errors.Join(errs...)
}

func list(ctx context.Context, client metadata.Getter, namespace string) ([]metav1.PartialObjectMetadata, error) {
	var found []metav1.PartialObjectMetadata
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := client.Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil, nil // the resource was deleted since discovery
		}
		if err != nil {
			return nil, fmt.Errorf("listing: %w", err)
		}
		found = append(found, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

func remove(ctx context.Context, client metadata.Getter, resource Resource, found []metav1.PartialObjectMetadata) error {
	var errs []error
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if resource.Collection {
		namespaces := map[string]bool{}
		for i := range found {
			namespaces[found[i].Namespace] = true
		}
		for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
			err := client.Namespace(namespace).DeleteCollection(ctx, options, metav1.ListOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("deleting: %w", err))
			}
		}
		return errors.Join(errs...)
	}
	for i := range found {
		if found[i].DeletionTimestamp != nil {
			continue // being deleted
		}
		options.Preconditions = metav1.NewUIDPreconditions(string(found[i].UID))
		err := client.Namespace(found[i].Namespace).Delete(ctx, found[i].Name, options)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting %s: %w", found[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// Finalize writes spec.finalizers of a namespace, which requires this subresource.
func Finalize(ctx context.Context, namespaces *client.Client[*corev1.Namespace, *corev1.NamespaceList], ns *corev1.Namespace) error {
	err := namespaces.GetClient().Put().Resource(kinds.Namespaces.Resource).Name(ns.Name).SubResource("finalize").Body(ns).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("finalizing namespace %s: %w", client.KeyOf(ns), err)
	}
	return nil
}
