// Package purge deletes everything of a namespace or of a logical cluster: all
// objects of all resources that discovery names there, whatever serves them.
//
// One round deletes what nothing holds where it is stored, lists each resource that may have more, deletes what it
// finds and looks again. What is left then waits for a finalizer, and the Outcome says how much of what; the
// caller comes back for another round. A resource that cannot be listed or
// deleted is an error of the round, never skipped.
package purge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
)

// pageSize is how many objects are asked for at a time.
const pageSize = 500

// Resource is a resource whose objects can be deleted.
type Resource struct {
	schema.GroupVersionResource
	// Namespaced reports whether its objects live in namespaces.
	Namespaced bool
	// Collection reports whether all objects of a namespace can be deleted with
	// one request.
	Collection bool
}

// Discover returns the resources of a logical cluster that hold objects, each
// in its preferred version. Where a part of discovery fails it returns the
// others along with the error.
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
				continue // nothing is kept, as of reviews, or a view of something else
			}
			resources = append(resources, Resource{
				GroupVersionResource: gv.WithResource(r.Name),
				Namespaced:           r.Namespaced,
				Collection:           slices.Contains(r.Verbs, "deletecollection"),
			})
		}
	}
	return resources, err
}

// Stored is where objects are stored, past the API, for what needs no request for each kind or object.
type Stored struct {
	// Any says of some resources which may have objects.
	Any Query
	// Free deletes the objects of some resources that nothing holds, and says which may have others.
	Free Query
}

// Ask asks about some resources in a logical cluster, or in one namespace of it unless that is empty.
type Query func(ctx context.Context, cluster logicalcluster.Name, namespace string, resources []schema.GroupResource) ([]bool, error)

// In returns what is stored of a logical cluster, or of one namespace of it unless that is empty.
func (s Stored) In(cluster logicalcluster.Name, namespace string) Content {
	return Content{Present: s.Any.in(cluster, namespace), Free: s.Free.in(cluster, namespace)}
}

func (a Query) in(cluster logicalcluster.Name, namespace string) Choose {
	return func(ctx context.Context, resources []Resource) ([]Resource, error) {
		if len(resources) == 0 {
			return nil, nil
		}
		asked := make([]schema.GroupResource, len(resources))
		for i := range resources {
			asked[i] = resources[i].GroupResource()
		}
		chosen, err := a(ctx, cluster, namespace, asked)
		if err != nil {
			return nil, fmt.Errorf("looking for objects: %w", err)
		}
		var of []Resource
		for i := range resources {
			if chosen[i] {
				of = append(of, resources[i])
			}
		}
		return of, nil
	}
}

// Content is what is stored of what is deleted.
type Content struct {
	// Present returns those resources that may have objects now. Most have none, and a request for
	// each costs more than to ask for all at once.
	Present Choose
	// Free deletes the objects that nothing holds, without a request, and returns those resources that
	// may have others.
	Free Choose
}

// Choose returns some of the resources.
type Choose func(ctx context.Context, resources []Resource) ([]Resource, error)

// Outcome is what a round has left behind.
type Outcome struct {
	// Remaining counts the objects that still exist.
	Remaining map[schema.GroupVersionResource]int
	// Finalizers counts the objects that wait for each finalizer.
	Finalizers map[string]int
	// Err holds what could not be listed or deleted.
	Err error
}

// Done reports whether nothing is left, for certain.
func (o Outcome) Done() bool { return o.Err == nil && len(o.Remaining) == 0 }

// Resources describes what is left by resource, in a fixed order; empty if
// nothing is.
func (o Outcome) Resources() string {
	parts := make([]string, 0, len(o.Remaining))
	for gvr, count := range o.Remaining {
		parts = append(parts, fmt.Sprintf("%s has %d objects", gvr.GroupResource(), count))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// WaitingFor describes what is left by finalizer, in a fixed order; empty if
// nothing waits for one.
func (o Outcome) WaitingFor() string {
	parts := make([]string, 0, len(o.Finalizers))
	for _, finalizer := range slices.Sorted(maps.Keys(o.Finalizers)) {
		parts = append(parts, fmt.Sprintf("%s in %d objects", finalizer, o.Finalizers[finalizer]))
	}
	return strings.Join(parts, ", ")
}

// Delete runs one round over the objects of the given resources, in one
// namespace, or everywhere if namespace is empty. The client is that of the
// logical cluster, and content that of what is deleted.
func Delete(ctx context.Context, client metadata.Interface, content Content, resources []Resource, namespace string) Outcome {
	outcome := Outcome{Remaining: map[schema.GroupVersionResource]int{}, Finalizers: map[string]int{}}
	touched, err := Remove(ctx, client, content, resources, namespace)
	errs := []error{err}
	left, err := content.Present(ctx, touched)
	errs = append(errs, err)
	for _, resource := range left {
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

// Remove is Delete for those who do not ask what is left. It returns the resources that had
// objects, or may have had.
func Remove(ctx context.Context, client metadata.Interface, content Content, resources []Resource, namespace string) (touched []Resource, err error) {
	resources, err = content.Present(ctx, resources)
	if err != nil {
		return nil, err
	}
	held, err := content.Free(ctx, resources)
	if err != nil {
		return resources, err
	}
	var errs []error
	for _, resource := range resources {
		if !slices.Contains(held, resource) {
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
			return nil, nil // the resource itself has gone since it was discovered
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
			continue // under way
		}
		options.Preconditions = metav1.NewUIDPreconditions(string(found[i].UID))
		err := client.Namespace(found[i].Namespace).Delete(ctx, found[i].Name, options)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting %s: %w", found[i].Name, err))
		}
	}
	return errors.Join(errs...)
}
