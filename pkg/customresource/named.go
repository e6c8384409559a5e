package customresource

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	apiextensionshelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/documents"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// metricName returns what metrics call a resource. Those of system definitions
// have series of their own. Tenants choose the names of all others, and a series
// that was made once is never given back, so those share one.
func (s *Server) metricName(resource schema.GroupResource) schema.GroupResource {
	if s.system.Has(resource) {
		return resource
	}
	return multitenant.Unnamed
}

// nameFor returns what the upstream handler is to call the resource of a
// request: the name in metrics, or the resource's own where it counts nothing but
// names the resource in an error.
func (s *Server) nameFor(info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if !counted(info, crd) {
		return resource
	}
	return s.metricName(resource)
}

// counted reports whether the upstream handler serves requests of this kind,
// and so counts them.
func counted(info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) bool {
	if info.Subresource == "" {
		return slices.Contains(documents.ObjectVerbs, info.Verb)
	}
	served, err := apiextensionshelpers.GetSubresourcesForVersion(crd, info.APIVersion)
	if err != nil || served == nil || !slices.Contains(documents.SubresourceVerbs, info.Verb) {
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

// serveUpstream has the upstream handler serve a request for what info says, which it
// keeps, with a synthetic definition.
func (s *Server) serveUpstream(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) {
	first := *info
	defer s.lister.issue(&first, s.nameFor(info, crd), crd)()
	ctx := &countedContext{Context: genericapirequest.WithRequestInfo(r.Context(), info), info: info, first: &first}
	s.upstream.ServeHTTP(w, r.WithContext(ctx)) //nolint:contextcheck // it inherits the request's
}
