package apis

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The annotations of a cached resource by which a cache server knows what its objects are.
const (
	CachedKindAnnotation  = "cache.kcp.io/resource-kind"
	CachedScopeAnnotation = "cache.kcp.io/resource-scope"
)

// The resources that are called cached resources here. kcp has two names for the same.
const (
	CachedResources        = "cachedresources"
	ClusterCachedResources = "clustercachedresources"
)

// The kinds of endpoint slices of cached resources, by either of their names.
const (
	CachedSliceKind        = "CachedResourceEndpointSlice"
	ClusterCachedSliceKind = "ClusterCachedResourceEndpointSlice"
)

// CachedSliceKindOf returns the kind of slices of cached resources that a reference is to, or "".
func CachedSliceKindOf(ref corev1.TypedLocalObjectReference) string {
	known := ref.Kind == CachedSliceKind || ref.Kind == ClusterCachedSliceKind
	if !known || ref.APIGroup == nil || *ref.APIGroup != cachev1alpha1.SchemeGroupVersion.Group {
		return ""
	}
	return ref.Kind
}

// Publisher is a cached resource of a shard.
type Publisher struct {
	// Resource is CachedResources or ClusterCachedResources.
	Resource string
	Cluster  logicalcluster.Name
	Name     string
}

// Publication is what a cached resource has replicated.
type Publication struct {
	// Resource are the objects' group, version and resource, and Kind is their kind.
	Resource schema.GroupVersionResource
	Kind     string
	// Identity tells them on caches from others of the resource.
	Identity string
	// API is the identity of the export that the resource is bound from, or "" if it is that of
	// a CustomResourceDefinition.
	API string
	// Selector selects objects; nil selects none. Names, unless nil, are the only ones.
	Selector labels.Selector
	Names    []string
	// Bytes are those of the objects, where they were counted.
	Bytes int64
	// Revision is a resource version from which on all this counts.
	Revision uint64
}

// Replicated is the resource under which the objects are read from the shard and written to
// caches.
func (p *Publication) Replicated() schema.GroupVersionResource {
	return Identified(p.Resource, p.Identity)
}

// Identified returns what the objects of a resource are called that have an identity, where others have another one:
// <resource>:<identity>.
func Identified(resource schema.GroupVersionResource, identity string) schema.GroupVersionResource {
	resource.Resource += ":" + identity
	return resource
}

// CachedAlreadyError says that another cached resource of a logical cluster has a resource replicated.
type CachedAlreadyError struct {
	Resource schema.GroupVersionResource
	By       Publisher
}

func (e *CachedAlreadyError) Error() string {
	return fmt.Sprintf("%s is cached already, by the %s %s", e.Resource, e.By.Resource, e.By.Name)
}

// CachedResourceOf returns the group, version and resource of a cached resource's objects.
func CachedResourceOf(cached *cachev1alpha1.CachedResource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: cached.Spec.Group, Version: cached.Spec.Version, Resource: cached.Spec.Resource}
}

// ReplicatedOf returns what the objects of a cached resource are on caches.
func ReplicatedOf(cached *cachev1alpha1.CachedResource) schema.GroupVersionResource {
	return Identified(CachedResourceOf(cached), cached.Status.IdentityHash)
}

// CachedSecretOf returns the reference to the secret with the identity of a cached resource,
// complete.
func CachedSecretOf(cached *cachev1alpha1.CachedResource) corev1.SecretReference {
	var named *corev1.SecretReference
	if cached.Spec.Identity != nil {
		named = cached.Spec.Identity.SecretRef
	}
	return secretOf(cached.Name, named)
}

// ValidateCachedResource returns what is wrong with a new cached resource in itself.
func ValidateCachedResource(cached *cachev1alpha1.CachedResource) field.ErrorList {
	return validateCachedResource(cached, 0)
}

// validateCachedResource validates a cached resource whose selector had so many labels and values before.
func validateCachedResource(cached *cachev1alpha1.CachedResource, had int) field.ErrorList {
	var errs field.ErrorList
	if cached.Spec.Version == "" {
		errs = append(errs, field.Required(spec.Child("version"), "name the version in which the objects are to be replicated, such as v1"))
	} else if len(apivalidation.IsDNS1035Label(cached.Spec.Version)) > 0 {
		errs = append(errs, field.Invalid(spec.Child("version"), cached.Spec.Version, "must be a version of an API, such as v1"))
	}
	if cached.Spec.Group == coreGroup || strings.Contains(cached.Spec.Resource, "/") {
		errs = append(errs, field.Invalid(spec.Child("group"), cached.Spec.Group, `the core group is called ""`))
	}
	if selector := cached.Spec.LabelSelector; selector != nil {
		errs = append(errs, validateLabels(selector, had, spec.Child("labelSelector"))...)
	}
	if identity := cached.Spec.Identity; identity != nil && identity.SecretRef != nil && identity.SecretRef.Name == "" {
		errs = append(errs, field.Required(spec.Child("identity", "secretRef", "name"), "name the secret that has the identity under "+IdentityKey+", or leave secretRef out to have one made"))
	}
	return errs
}

// ValidateCachedResourceUpdate returns what is wrong with a cached resource that was another one
// before: of what and under which identity it has replicas does not change.
func ValidateCachedResourceUpdate(cached, before *cachev1alpha1.CachedResource) field.ErrorList {
	errs := validateCachedResource(cached, selected(before.Spec.LabelSelector))
	for _, kept := range []struct{ name, is, was string }{
		{"group", cached.Spec.Group, before.Spec.Group},
		{"version", cached.Spec.Version, before.Spec.Version},
		{"resource", cached.Spec.Resource, before.Spec.Resource},
	} {
		if kept.is != kept.was {
			errs = append(errs, field.Forbidden(spec.Child(kept.name), fmt.Sprintf("it is %q and cannot change: make another object for another resource", kept.was)))
		}
	}
	if before.Spec.Identity != nil && before.Spec.Identity.SecretRef != nil && CachedSecretOf(cached) != CachedSecretOf(before) {
		errs = append(errs, field.Forbidden(spec.Child("identity"), "the identity cannot change: make another object for another identity"))
	}
	return errs
}
