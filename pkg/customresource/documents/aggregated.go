package documents

import (
	"fmt"
	"net/http"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	discoveryconversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// aggregatedCodecs encode aggregated discovery, in the versions that there are.
var aggregatedCodecs = sync.OnceValues(func() (serializer.CodecFactory, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apidiscoveryv2.AddToScheme, apidiscoveryv2beta1.AddToScheme, discoveryconversion.RegisterConversions,
	} {
		if err := add(scheme); err != nil {
			return serializer.CodecFactory{}, fmt.Errorf("registering discovery types: %w", err)
		}
	}
	return serializer.NewCodecFactory(scheme), nil
})

// aggregatedDiscovery serves one aggregated discovery document. Upstream's
// manager would do, but it logs every group version of every set.
type aggregatedDiscovery struct {
	list   apidiscoveryv2.APIGroupDiscoveryList
	etag   string
	codecs serializer.CodecFactory
}

// newAggregatedDiscovery makes the document of groups, in their order. etag
// changes when the document does.
func newAggregatedDiscovery(groups []metav1.APIGroup, versions map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery, etag string) (*aggregatedDiscovery, error) {
	codecs, err := aggregatedCodecs()
	if err != nil {
		return nil, err
	}
	d := &aggregatedDiscovery{etag: etag, codecs: codecs}
	for _, g := range groups {
		group := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, v := range g.Versions {
			group.Versions = append(group.Versions, versions[schema.GroupVersion{Group: g.Name, Version: v.Version}])
		}
		d.list.Items = append(d.list.Items, group)
	}
	return d, nil
}

// ServeHTTP implements http.Handler.
func (d *aggregatedDiscovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mediaType, _, err := negotiation.NegotiateOutputMediaType(r, d.codecs, aggregated.DiscoveryEndpointRestrictions)
	if err == nil && mediaType.Convert == nil {
		err = negotiation.NewNotAcceptableError([]string{acceptAggregated})
	}
	if err != nil {
		responsewriters.ErrorNegotiated(err, apiextensionsserver.Codecs, schema.GroupVersion{}, w, r)
		return
	}
	list := d.list
	aggregated.ServeHTTPWithETag(&list, d.etag, mediaType.Convert.GroupVersion(), d.codecs, w, r)
}
