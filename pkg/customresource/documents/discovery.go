package documents

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/version"
	discoveryconversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents/openapidoc"
)

// Verbs of custom resources and their subresources.
var (
	ObjectVerbs      = metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	readOnlyVerbs    = metav1.Verbs{"get", "list", "watch"}
	terminatingVerbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	SubresourceVerbs = metav1.Verbs{"get", "patch", "update"}
)

// noAddresses omits server addresses in discovery.
type noAddresses struct{}

func (noAddresses) ServerAddressByClientCIDRs(net.IP) []metav1.ServerAddressByClientCIDR { return nil }

// documentSet contains the documents of one set of definitions, which are created on demand.
type documentSet struct {
	key      string
	builtIns *BuiltIns
	// only is set if documents contain nothing else, not even other built-in resources.
	only        bool
	definitions []*definitions.Definition
	versions    map[schema.GroupVersion][]*definitions.Definition
	groups      map[string]bool

	mu        sync.Mutex
	discovery *discoveryDocuments // nil until it is requested
	library   *openapidoc.Library
	used      time.Time // guarded by Documents.mu
}

type discoveryDocuments struct {
	groups []metav1.APIGroup // except the core group
	// root serves /apis, and core serves /api.
	root, core http.Handler
}

// handler serves a document of a set, and reports whether there is one.
type handler func(s *documentSet, w http.ResponseWriter, r *http.Request) (served bool, err error)

// discover returns the merged groups, aggregated and not.
func (s *documentSet) discover(ctx context.Context) (*discoveryDocuments, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.discovery != nil {
		return s.discovery, nil
	}
	loaded, err := s.builtIns.load(ctx)
	if err != nil {
		return nil, err
	}
	all, merged := s.merge(loaded.groups)
	slices.SortFunc(all[len(loaded.groups):], func(a, b metav1.APIGroup) int { return strings.Compare(a.Name, b.Name) })
	plain := metav1.APIVersions{}
	if loaded.versions[schema.GroupVersion{Version: "v1"}] {
		if plain, _, err = read[metav1.APIVersions](ctx, s.builtIns.Next, "of /"+apiPrefix, "/"+apiPrefix, runtime.ContentTypeJSON); err != nil {
			return nil, err
		}
	}
	plain.Versions = []string{}
	made, root := &discoveryDocuments{}, discovery.NewRootAPIsHandler(noAddresses{}, apiextensionsserver.Codecs)
	var core []metav1.APIGroup
	for _, group := range all {
		if group.Name == "" {
			core = append(core, group)
			for _, v := range group.Versions {
				plain.Versions = append(plain.Versions, v.Version)
			}
			continue
		}
		group.PreferredVersion = group.Versions[0]
		root.AddGroup(group)
		made.groups = append(made.groups, group)
	}
	made.root = aggregated.WrapAggregatedDiscoveryToHandler(root, newAggregatedDiscovery(made.groups, merged, s.key), nil)
	made.core = aggregated.WrapAggregatedDiscoveryToHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		responsewriters.WriteObjectNegotiated(apiextensionsserver.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{Version: "v1"}, w, r, http.StatusOK, plain.DeepCopy(), false)
	}), newAggregatedDiscovery(core, merged, s.key), nil)
	s.discovery = made
	return made, nil
}

// merge returns the groups of the wrapped handler and those of definitions, and the resources by version.
func (s *documentSet) merge(builtIn []apidiscoveryv2.APIGroupDiscovery) ([]metav1.APIGroup, map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery) {
	merged := map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery{}
	groups := make([]metav1.APIGroup, 0, len(builtIn)+len(s.groups))
	for _, g := range builtIn {
		group := metav1.APIGroup{Name: g.Name, Versions: make([]metav1.GroupVersionForDiscovery, 0, len(g.Versions))}
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			merged[gv] = *v.DeepCopy()
			group.Versions = append(group.Versions, groupVersion(gv))
		}
		groups = append(groups, group)
	}
	for gv, added := range s.versions {
		v, known := merged[gv]
		if !known {
			v = apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			groups = addVersion(groups, gv)
		}
		for _, d := range added {
			v.Resources = append(v.Resources, aggregatedResource(d, gv)...)
		}
		slices.SortStableFunc(v.Resources, func(a, b apidiscoveryv2.APIResourceDiscovery) int {
			return strings.Compare(a.Resource, b.Resource)
		})
		merged[gv] = v
	}
	return groups, merged
}

// serveCore serves /api.
func (s *documentSet) serveCore(w http.ResponseWriter, r *http.Request) (bool, error) {
	if !s.groups[""] && !s.only {
		return false, nil
	}
	made, err := s.discover(r.Context())
	if err != nil {
		return false, err
	}
	made.core.ServeHTTP(w, r)
	return true, nil
}

func groupVersion(gv schema.GroupVersion) metav1.GroupVersionForDiscovery {
	return metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
}

// addVersion adds a version of a custom resource to its group.
func addVersion(groups []metav1.APIGroup, gv schema.GroupVersion) []metav1.APIGroup {
	i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == gv.Group })
	if i < 0 {
		return append(groups, metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{groupVersion(gv)}})
	}
	groups[i].Versions = append(groups[i].Versions, groupVersion(gv))
	slices.SortStableFunc(groups[i].Versions, func(a, b metav1.GroupVersionForDiscovery) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	return groups
}

// serveGroups serves /apis.
func (s *documentSet) serveGroups(w http.ResponseWriter, r *http.Request) (bool, error) {
	made, err := s.discover(r.Context())
	if err != nil {
		return false, err
	}
	made.root.ServeHTTP(w, r)
	return true, nil
}

// serveGroup serves /apis/<group>.
func (s *documentSet) serveGroup(w http.ResponseWriter, r *http.Request, name string) (bool, error) {
	if !s.groups[name] && !s.only {
		return false, nil
	}
	made, err := s.discover(r.Context())
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(made.groups, func(g metav1.APIGroup) bool { return g.Name == name })
	if i < 0 {
		return false, nil
	}
	discovery.NewAPIGroupHandler(apiextensionsserver.Codecs, made.groups[i]).ServeHTTP(w, r)
	return true, nil
}

// serveVersion serves /apis/<group>/<version> and /api/<version>.
func (s *documentSet) serveVersion(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) (bool, error) {
	added := s.versions[gv]
	if len(added) == 0 && !s.only {
		return false, nil
	}
	resources, err := s.builtIns.resourceList(r.Context(), gv)
	if err != nil {
		return false, err
	}
	if len(added)+len(resources) == 0 {
		return false, nil
	}
	for _, d := range added {
		resources = append(resources, plainResources(d, gv)...)
	}
	slices.SortStableFunc(resources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	lister := discovery.APIResourceListerFunc(func() []metav1.APIResource { return resources })
	discovery.NewAPIVersionHandler(apiextensionsserver.Codecs, gv, lister).ServeHTTP(w, r)
	return true, nil
}

func verbsOf(d *definitions.Definition) metav1.Verbs {
	switch {
	case d.Verbs != nil:
		return d.Verbs.Object
	case d.Objects != nil:
		return readOnlyVerbs
	case d.Terminating:
		return terminatingVerbs
	default:
		return ObjectVerbs
	}
}

func subresourcesOf(d *definitions.Definition, v string) *apiextensionsv1.CustomResourceSubresources {
	subresources, err := apihelpers.GetSubresourcesForVersion(d.Schema.CRD(), v)
	switch {
	case err != nil || subresources == nil || d.Objects != nil || d.Verbs != nil && !d.Verbs.Status:
		return &apiextensionsv1.CustomResourceSubresources{}
	case d.Verbs != nil:
		return &apiextensionsv1.CustomResourceSubresources{Status: subresources.Status}
	default:
		return subresources
	}
}

// plainResources returns the unaggregated discovery of a custom resource.
func plainResources(d *definitions.Definition, gv schema.GroupVersion) []metav1.APIResource {
	names, spec := d.Schema.Names(), d.Schema.Spec()
	namespaced := spec.Scope == apiextensionsv1.NamespaceScoped
	all := []metav1.APIResource{{
		Name: names.Plural, SingularName: names.Singular, Namespaced: namespaced, Kind: names.Kind,
		Verbs: verbsOf(d), ShortNames: names.ShortNames, Categories: names.Categories,
		StorageVersionHash: storageVersionHash(d),
	}}
	subresources := subresourcesOf(d, gv.Version)
	if subresources.Status != nil {
		all = append(all, metav1.APIResource{
			Name: names.Plural + "/status", Namespaced: namespaced, Kind: names.Kind, Verbs: SubresourceVerbs,
		})
	}
	if subresources.Scale != nil {
		all = append(all, metav1.APIResource{
			Group: autoscalingv1.GroupName, Version: "v1", Kind: "Scale",
			Name: names.Plural + "/scale", Namespaced: namespaced, Verbs: SubresourceVerbs,
		})
	}
	return all
}

func storageVersionHash(d *definitions.Definition) string {
	stored := d.Schema.StoredVersion()
	if stored == "" {
		return ""
	}
	return discovery.StorageVersionHash(d.Schema.Resource.Group, stored, d.Schema.Names().Kind)
}

// aggregatedResource returns the aggregated discovery of a custom resource.
func aggregatedResource(d *definitions.Definition, gv schema.GroupVersion) []apidiscoveryv2.APIResourceDiscovery {
	all := plainResources(d, gv)
	for i := range all {
		if all[i].Version == "" {
			all[i].Group, all[i].Version = gv.Group, gv.Version
		}
	}
	resources, _ := endpoints.ConvertGroupVersionIntoToDiscovery(all) // all have the same scope
	return resources
}

var aggregatedCodecs = sync.OnceValue(func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryv2beta1.AddToScheme(scheme))
	utilruntime.Must(discoveryconversion.RegisterConversions(scheme))
	return serializer.NewCodecFactory(scheme)
})

// aggregatedDiscovery serves one aggregated discovery document. It replaces upstream's manager, which logs
// every group version of every set.
type aggregatedDiscovery struct {
	list apidiscoveryv2.APIGroupDiscoveryList
	etag string
}

// newAggregatedDiscovery creates the document of groups, in their order. etag must change with the document.
func newAggregatedDiscovery(groups []metav1.APIGroup, versions map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery, etag string) *aggregatedDiscovery {
	d := &aggregatedDiscovery{etag: etag}
	for _, g := range groups {
		group := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, v := range g.Versions {
			group.Versions = append(group.Versions, versions[schema.GroupVersion{Group: g.Name, Version: v.Version}])
		}
		d.list.Items = append(d.list.Items, group)
	}
	return d
}

func (d *aggregatedDiscovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	codecs := aggregatedCodecs()
	mediaType, _, err := negotiation.NegotiateOutputMediaType(r, codecs, aggregated.DiscoveryEndpointRestrictions)
	if err == nil && mediaType.Convert == nil {
		err = negotiation.NewNotAcceptableError([]string{acceptAggregated})
	}
	if err != nil {
		responsewriters.ErrorNegotiated(err, apiextensionsserver.Codecs, schema.GroupVersion{}, w, r)
		return
	}
	list := d.list
	aggregated.ServeHTTPWithETag(&list, d.etag, mediaType.Convert.GroupVersion(), codecs, w, r)
}
