package documents

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// apiPrefix starts the paths of the group "", and apisPrefix those of all others.
	apiPrefix  = "api"
	apisPrefix = "apis"
)

const (
	openapiV2Path = "/openapi/v2"
	openapiV3Path = "/openapi/v3"
)

// pathOf returns where a group version is served, without a slash before it.
func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return apiPrefix + "/" + gv.Version
	}
	return apisPrefix + "/" + gv.String()
}

// Kind is a built-in kind whose objects are kept: they can be watched and deleted.
type Kind struct {
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// kinds are the built-in ones.
type kinds struct {
	byKind map[schema.GroupVersionKind]Kind
	// byPrefix are those by the prefix of their keys, in the first of their versions.
	byPrefix map[string]Kind
}

func (k kinds) add(gv schema.GroupVersion, r *apidiscoveryv2.APIResourceDiscovery) {
	if r.ResponseKind == nil || !slices.Contains(r.Verbs, "watch") || !slices.Contains(r.Verbs, "delete") {
		return
	}
	kind := Kind{Resource: gv.WithResource(r.Resource), Kind: r.ResponseKind.Kind, Namespaced: r.Scope == apidiscoveryv2.ScopeNamespace}
	k.byKind[gv.WithKind(kind.Kind)] = kind
	prefix := storage.ResourcePrefix(kind.Resource.GroupResource()) + "/"
	if _, ok := k.byPrefix[prefix]; !ok {
		k.byPrefix[prefix] = kind
	}
}

const acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// BuiltIns knows what the wrapped handler serves itself, which is the same in
// every logical cluster and does not change while the server runs.
type BuiltIns struct {
	// Next is the wrapped handler; set it before the first request.
	Next   http.Handler
	mu     sync.Mutex
	loaded atomic.Pointer[builtInDiscovery]

	documents atomic.Pointer[builtInOpenAPI]
}

// builtInDiscovery is the wrapped handler's discovery.
type builtInDiscovery struct {
	// core is the group "", if there is one, and groups are all others.
	core, groups []apidiscoveryv2.APIGroupDiscovery

	versions  map[schema.GroupVersion]bool
	resources map[schema.GroupResource]bool
	kinds
}

// load reads the wrapped handler's discovery, once.
func (b *BuiltIns) load(ctx context.Context) (*builtInDiscovery, error) {
	if loaded := b.loaded.Load(); loaded != nil {
		return loaded, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if loaded := b.loaded.Load(); loaded != nil {
		return loaded, nil
	}
	if b.Next == nil {
		return nil, errors.New("the server does not serve yet")
	}
	loaded := &builtInDiscovery{
		versions:  map[schema.GroupVersion]bool{},
		resources: map[schema.GroupResource]bool{},
		kinds:     kinds{byKind: map[schema.GroupVersionKind]Kind{}, byPrefix: map[string]Kind{}},
	}
	var err error
	if loaded.core, err = b.groupsBelow(ctx, "/"+apiPrefix); err != nil {
		return nil, err
	}
	if loaded.groups, err = b.groupsBelow(ctx, "/"+apisPrefix); err != nil {
		return nil, err
	}
	for _, g := range loaded.all() {
		for _, v := range g.Versions {
			loaded.versions[schema.GroupVersion{Group: g.Name, Version: v.Version}] = true
			for _, r := range v.Resources {
				loaded.resources[schema.GroupResource{Group: g.Name, Resource: r.Resource}] = true
				loaded.add(schema.GroupVersion{Group: g.Name, Version: v.Version}, &r)
			}
		}
	}
	b.loaded.Store(loaded)
	return loaded, nil
}

// groupsBelow reads the aggregated discovery below a path, which may have none.
func (b *BuiltIns) groupsBelow(ctx context.Context, path string) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	status, body := get(ctx, b.Next, path, http.Header{"Accept": {acceptAggregated}})
	if status == http.StatusNotFound {
		return nil, nil
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the built-in discovery below %s answered %d", path, status)
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("reading the built-in discovery below %s: %w", path, err)
	}
	return list.Items, nil
}

func (d *builtInDiscovery) all() []apidiscoveryv2.APIGroupDiscovery {
	return slices.Concat(d.core, d.groups)
}

// Serves reports whether the wrapped handler serves a resource, in any version.
func (b *BuiltIns) Serves(ctx context.Context, resource schema.GroupResource) bool {
	loaded, err := b.load(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell the built-in resources")
		return false
	}
	return loaded.resources[resource]
}

// Names returns the names of the resources of a built-in group.
func (b *BuiltIns) Names(ctx context.Context, group string) ([]apiextensions.CustomResourceDefinitionNames, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	var all []apiextensions.CustomResourceDefinitionNames
	if group == "" {
		all = slices.Clone(unversioned)
	}
	for _, g := range loaded.all() {
		if g.Name != group {
			continue
		}
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				all = append(all, namesOf(&r))
			}
		}
	}
	return all, nil
}

// unversioned are the kinds of the group "" that are no resources: clients take what
// says to be one for an error, a list or options.
var unversioned = func() []apiextensions.CustomResourceDefinitionNames {
	scheme := runtime.NewScheme()
	version := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, version)
	kinds := scheme.KnownTypes(version)
	all := append(make([]apiextensions.CustomResourceDefinitionNames, 0, len(kinds)+1), apiextensions.CustomResourceDefinitionNames{Kind: "List"})
	for kind := range kinds {
		all = append(all, apiextensions.CustomResourceDefinitionNames{Kind: kind})
	}
	return all
}()

func namesOf(r *apidiscoveryv2.APIResourceDiscovery) apiextensions.CustomResourceDefinitionNames {
	names := apiextensions.CustomResourceDefinitionNames{
		Plural: r.Resource, Singular: r.SingularResource, ShortNames: r.ShortNames,
	}
	if r.ResponseKind != nil {
		names.Kind, names.ListKind = r.ResponseKind.Kind, r.ResponseKind.Kind+"List"
	}
	return names
}

// get asks a handler in this process.
func get(ctx context.Context, h http.Handler, path string, header http.Header) (status int, body []byte) {
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Path: path, Verb: "get"})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	r.RequestURI = path
	r.Header = header
	answer := &memoryResponse{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(answer, r)
	return answer.status, answer.body.Bytes()
}

// memoryResponse keeps a response.
type memoryResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (m *memoryResponse) Header() http.Header { return m.header }

// WriteHeader implements http.ResponseWriter.
func (m *memoryResponse) WriteHeader(status int) { m.status = status }

// Write implements http.ResponseWriter.
func (m *memoryResponse) Write(data []byte) (int, error) { return m.body.Write(data) }

// Kind returns the built-in resource of a kind; false if there is none.
func (b *BuiltIns) Kind(ctx context.Context, kind schema.GroupVersionKind) (Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return Kind{}, false, err
	}
	found, ok := loaded.byKind[kind]
	return found, ok, nil
}

// OfPrefix returns the built-in resource whose keys have a prefix; false if there is none.
func (b *BuiltIns) OfPrefix(ctx context.Context, prefix string) (Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return Kind{}, false, err
	}
	found, ok := loaded.byPrefix[prefix]
	return found, ok, nil
}

// resourceList returns what the wrapped handler serves in a group version.
func (b *BuiltIns) resourceList(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	loaded, err := b.load(ctx)
	if err != nil || !loaded.versions[gv] {
		return nil, err
	}
	status, body := get(ctx, b.Next, "/"+pathOf(gv), http.Header{"Accept": {"application/json"}})
	if status != http.StatusOK {
		return nil, fmt.Errorf("the built-in discovery of %s answered %d", gv, status)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("reading the built-in discovery of %s: %w", gv, err)
	}
	return loaded.served(gv, list.APIResources), nil
}

// served returns those of a group version's resources that are told of, with their
// subresources.
func (d *builtInDiscovery) served(gv schema.GroupVersion, all []metav1.APIResource) []metav1.APIResource {
	return slices.DeleteFunc(all, func(r metav1.APIResource) bool {
		resource, _, _ := strings.Cut(r.Name, "/")
		return !d.resources[schema.GroupResource{Group: gv.Group, Resource: resource}]
	})
}

// builtInOpenAPI is what the wrapped handler says of its OpenAPI documents.
type builtInOpenAPI struct {
	// index is its index of v3; empty if it has no OpenAPI.
	index []byte
	// versions are those that it has a document of v3 for.
	versions map[schema.GroupVersion]bool
	// hash changes with the documents, and so with the release of the server.
	hash string
}

// openapi reads what the wrapped handler says of its documents, once.
func (b *BuiltIns) openapi(ctx context.Context) (*builtInOpenAPI, error) {
	if known := b.documents.Load(); known != nil {
		return known, nil
	}
	discovery, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	index, err := b.document(ctx, openapiV3Path)
	if err != nil {
		return nil, err
	}
	known := &builtInOpenAPI{index: index, hash: hashOf(index), versions: map[schema.GroupVersion]bool{}}
	if len(index) > 0 {
		known.versions = discovery.versions
	}
	b.documents.Store(known)
	return known, nil
}

// document reads a document of the wrapped handler; empty if there is none.
func (b *BuiltIns) document(ctx context.Context, path string) ([]byte, error) {
	status, body := get(ctx, b.Next, path, http.Header{"Accept": {"application/json"}})
	switch status {
	case http.StatusOK:
		return body, nil
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("the built-in document %s answered %d", path, status)
	}
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
