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

// Annotations of CachedResources.
const (
	// CachedKindAnnotation is the kind of the replicated objects, for cache servers.
	//
	//reference:metadata CachedResource | CachedResource controller
	CachedKindAnnotation = "cache.kcp.io/resource-kind"
	// CachedScopeAnnotation is the scope of the replicated objects, for cache servers.
	//
	//reference:metadata CachedResource | CachedResource controller
	CachedScopeAnnotation = "cache.kcp.io/resource-scope"
)

// kcp has two names for cached resources and for their endpoint slices.
const (
	CachedResources        = "cachedresources"
	ClusterCachedResources = "clustercachedresources"
	CachedSliceKind        = "CachedResourceEndpointSlice"
	ClusterCachedSliceKind = "ClusterCachedResourceEndpointSlice"
)

// CachedSliceKindOf returns the kind of the endpoint slice in a reference, or "" if it refers to another kind.
func CachedSliceKindOf(ref corev1.TypedLocalObjectReference) string {
	known := ref.Kind == CachedSliceKind || ref.Kind == ClusterCachedSliceKind
	if !known || ref.APIGroup == nil || *ref.APIGroup != cachev1alpha1.SchemeGroupVersion.Group {
		return ""
	}
	return ref.Kind
}

// Publisher identifies a cached resource of a shard.
type Publisher struct {
	// Resource is CachedResources or ClusterCachedResources.
	Resource string
	Cluster  logicalcluster.Name
	Name     string
}

// Publication describes the objects that a cached resource replicates.
type Publication struct {
	Resource schema.GroupVersionResource
	Kind     string
	// Identity distinguishes the objects from others of the same resource on caches.
	Identity string
	// API is the identity of the export that defines the resource, or "" for a CustomResourceDefinition.
	API string
	// Selector selects objects; nil selects none. If Names is not nil, only the named objects are replicated.
	Selector labels.Selector
	Names    []string
	// Bytes is the size of the objects, if it is known.
	Bytes int64
	// Revision is the resource version from which this is valid.
	Revision uint64
}

// Replicated returns the resource name with which the objects are read from the shard and written to caches.
func (p *Publication) Replicated() schema.GroupVersionResource {
	return Identified(p.Resource, p.Identity)
}

// Identified returns the name of a resource with an identity: <resource>:<identity>.
func Identified(resource schema.GroupVersionResource, identity string) schema.GroupVersionResource {
	resource.Resource += ":" + identity
	return resource
}

// CachedAlreadyError is returned if another cached resource of the logical cluster replicates a resource.
type CachedAlreadyError struct {
	Resource schema.GroupVersionResource
	By       Publisher
}

func (e *CachedAlreadyError) Error() string {
	return fmt.Sprintf("%s is already cached by the %s %s", e.Resource, e.By.Resource, e.By.Name)
}

// CachedResourceOf returns the group, version and resource of a cached resource's objects.
func CachedResourceOf(cached *cachev1alpha1.CachedResource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: cached.Spec.Group, Version: cached.Spec.Version, Resource: cached.Spec.Resource}
}

// ReplicatedOf returns the resource name of the objects of a cached resource on caches.
func ReplicatedOf(cached *cachev1alpha1.CachedResource) schema.GroupVersionResource {
	return Identified(CachedResourceOf(cached), cached.Status.IdentityHash)
}

// CachedSecretOf returns the secret with the identity of a cached resource.
func CachedSecretOf(cached *cachev1alpha1.CachedResource) corev1.SecretReference {
	var named *corev1.SecretReference
	if cached.Spec.Identity != nil {
		named = cached.Spec.Identity.SecretRef
	}
	return secretOf(cached.Name, named)
}

// ValidateCachedResource validates a cached resource. An update must not change the replicated resource and its
// identity. before is nil for a new one.
func ValidateCachedResource(cached, before *cachev1alpha1.CachedResource) field.ErrorList {
	var errs field.ErrorList
	had := 0 // the size of the previous selector
	if before != nil {
		had = selected(before.Spec.LabelSelector)
	}
	if cached.Spec.Version == "" {
		errs = append(errs, field.Required(spec.Child("version"), "specify the version in which the objects are replicated, such as v1"))
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
		errs = append(errs, field.Required(spec.Child("identity", "secretRef", "name"), "specify the secret that has the identity under "+IdentityKey+", or omit secretRef to have one created"))
	}
	if before == nil {
		return errs
	}
	for _, kept := range []struct{ name, is, was string }{
		{"group", cached.Spec.Group, before.Spec.Group},
		{"version", cached.Spec.Version, before.Spec.Version},
		{"resource", cached.Spec.Resource, before.Spec.Resource},
	} {
		if kept.is != kept.was {
			errs = append(errs, field.Forbidden(spec.Child(kept.name), fmt.Sprintf("the value %q is immutable: create another object for another resource", kept.was)))
		}
	}
	if before.Spec.Identity != nil && before.Spec.Identity.SecretRef != nil && CachedSecretOf(cached) != CachedSecretOf(before) {
		errs = append(errs, field.Forbidden(spec.Child("identity"), "the identity is immutable: create another object for another identity"))
	}
	return errs
}
