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
	// apiPrefix is the path of the core group, and apisPrefix that of all others.
	apiPrefix  = "api"
	apisPrefix = "apis"
)

const (
	openapiV2Path = "/openapi/v2"
	openapiV3Path = "/openapi/v3"
)

// pathOf returns the path of a group version without a leading slash.
func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return apiPrefix + "/" + gv.Version
	}
	return apisPrefix + "/" + gv.String()
}

// Kind is a built-in kind with stored objects, i.e. that can be watched and deleted.
type Kind struct {
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

type kinds struct {
	byKind map[schema.GroupVersionKind]Kind
	// byPrefix contains them by the prefix of their keys, in their first version.
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

// BuiltIns reads discovery and OpenAPI of the wrapped handler, which are the same in every logical cluster and
// do not change while the server runs.
type BuiltIns struct {
	// Next is the wrapped handler. It must be set before the first request.
	Next   http.Handler
	mu     sync.Mutex
	loaded atomic.Pointer[builtInDiscovery]

	documents atomic.Pointer[builtInOpenAPI]
}

type builtInDiscovery struct {
	// core is the core group, if there is one, and groups are all others.
	core, groups []apidiscoveryv2.APIGroupDiscovery

	versions  map[schema.GroupVersion]bool
	resources map[schema.GroupResource]bool
	kinds
}

// load reads the wrapped handler's discovery once.
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
		return nil, errors.New("the server is not ready yet")
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

// groupsBelow reads the aggregated discovery below a path, or nothing if the path is not found.
func (b *BuiltIns) groupsBelow(ctx context.Context, path string) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	status, body := get(ctx, b.Next, path, http.Header{"Accept": {acceptAggregated}})
	if status == http.StatusNotFound {
		return nil, nil
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the built-in discovery below %s returned %d", path, status)
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
		klog.FromContext(ctx).Error(err, "Failed to read the built-in resources")
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

// unversioned are the kinds of the core group that are not resources, because clients would take an object of
// such a kind for an error, a list or options.
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

// get sends a request to a handler in this process.
func get(ctx context.Context, h http.Handler, path string, header http.Header) (status int, body []byte) {
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Path: path, Verb: "get"})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	r.RequestURI = path
	r.Header = header
	response := NewResponse()
	h.ServeHTTP(response, r)
	return response.Status, response.Body.Bytes()
}

// Response records a response in this process.
type Response struct {
	header http.Header
	Status int
	Body   bytes.Buffer
}

// NewResponse returns an empty response.
func NewResponse() *Response { return &Response{header: http.Header{}, Status: http.StatusOK} }

// Header implements http.ResponseWriter.
func (r *Response) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *Response) WriteHeader(status int) { r.Status = status }

// Write implements http.ResponseWriter.
func (r *Response) Write(data []byte) (int, error) { return r.Body.Write(data) }

// Kind returns the built-in resource of a kind, or false.
func (b *BuiltIns) Kind(ctx context.Context, kind schema.GroupVersionKind) (Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return Kind{}, false, err
	}
	found, ok := loaded.byKind[kind]
	return found, ok, nil
}

// OfPrefix returns the built-in resource with a key prefix, or false.
func (b *BuiltIns) OfPrefix(ctx context.Context, prefix string) (Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return Kind{}, false, err
	}
	found, ok := loaded.byPrefix[prefix]
	return found, ok, nil
}

// resourceList returns the wrapped handler's resources of a group version.
func (b *BuiltIns) resourceList(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	loaded, err := b.load(ctx)
	if err != nil || !loaded.versions[gv] {
		return nil, err
	}
	status, body := get(ctx, b.Next, "/"+pathOf(gv), http.Header{"Accept": {"application/json"}})
	if status != http.StatusOK {
		return nil, fmt.Errorf("the built-in discovery of %s returned %d", gv, status)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("reading the built-in discovery of %s: %w", gv, err)
	}
	return loaded.served(gv, list.APIResources), nil
}

// served filters resources and their subresources, because a subset may contain only some.
func (d *builtInDiscovery) served(gv schema.GroupVersion, all []metav1.APIResource) []metav1.APIResource {
	return slices.DeleteFunc(all, func(r metav1.APIResource) bool {
		resource, _, _ := strings.Cut(r.Name, "/")
		return !d.resources[schema.GroupResource{Group: gv.Group, Resource: resource}]
	})
}

// builtInOpenAPI describes the wrapped handler's OpenAPI documents.
type builtInOpenAPI struct {
	// index is the index of v3; empty if there is no OpenAPI.
	index []byte
	// versions are the group versions with a document of v3.
	versions map[schema.GroupVersion]bool
	// hash changes with the documents, i.e. with the release of the server.
	hash string
}

// openapi reads the index of the wrapped handler's documents once.
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

// document reads a document of the wrapped handler; empty if it is not found.
func (b *BuiltIns) document(ctx context.Context, path string) ([]byte, error) {
	status, body := get(ctx, b.Next, path, http.Header{"Accept": {"application/json"}})
	switch status {
	case http.StatusOK:
		return body, nil
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("the built-in document %s returned %d", path, status)
	}
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
