package customresource

import (
	"context"
	"slices"
	"sync/atomic"

	apiextensionshelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// named are the resources that have series of their own in metrics: those of
// system definitions. Tenants choose the names of all others, and a series that
// was made once is never given back, so those share one.
type named map[schema.GroupResource]*Definition

// name returns what metrics call a resource.
func (n named) name(resource schema.GroupResource) schema.GroupResource {
	if _, ok := n[resource]; ok {
		return resource
	}
	return multitenant.Unnamed
}

// of returns what the upstream handler is to call the resource of a request:
// the name in metrics, or the resource's own where it counts nothing but names
// the resource in an error.
func (n named) of(info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if !counted(info, crd) {
		return resource
	}
	return n.name(resource)
}

// counted reports whether the upstream handler serves requests of this kind,
// and so counts them.
func counted(info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) bool {
	if info.Subresource == "" {
		return slices.Contains(objectVerbs, info.Verb)
	}
	served, err := apiextensionshelpers.GetSubresourcesForVersion(crd, info.APIVersion)
	if err != nil || served == nil || !slices.Contains(subresourceVerbs, info.Verb) {
		return false
	}
	return info.Subresource == "status" && served.Status != nil || info.Subresource == "scale" && served.Scale != nil
}

// countedContext gives whoever asks first for the request info another one than
// everybody after. The upstream handler asks first, and takes from its answer
// what the request is counted as; registries ask later, for their errors.
type countedContext struct {
	context.Context //nolint:containedctx // it is a context

	info, first *genericapirequest.RequestInfo
	asked       atomic.Bool
}

// Value implements context.Context.
func (c *countedContext) Value(key any) any {
	value := c.Context.Value(key)
	if info, ok := value.(*genericapirequest.RequestInfo); ok && info == c.info && c.asked.CompareAndSwap(false, true) {
		return c.first
	}
	return value
}
