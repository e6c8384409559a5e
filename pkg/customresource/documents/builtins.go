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
	"sync/atomic"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// apiPrefix is the path of the core group, and apisPrefix the path of all other groups.
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

const acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// BuiltIns reads discovery and OpenAPI of the wrapped handler, which are the same in every logical cluster and
// do not change while the server runs.
type BuiltIns struct {
	// Next is the wrapped handler. It must be set before the first request.
	Next http.Handler
	// Both are read when they are first used, possibly by several requests at the same time.
	loaded    atomic.Pointer[builtInDiscovery]
	documents atomic.Pointer[builtInOpenAPI]
}

type builtInDiscovery struct {
	groups    []apidiscoveryv2.APIGroupDiscovery // the core group, if there is one, is the first
	versions  map[schema.GroupVersion]bool
	resources map[schema.GroupResource]bool
	// byKind contains the kinds with stored objects, i.e. that can be watched and deleted. byPrefix contains
	// them by the prefix of their keys, in their first version.
	byKind   map[schema.GroupVersionKind]storage.Kind
	byPrefix map[string]storage.Kind
}

func newBuiltInDiscovery(groups []apidiscoveryv2.APIGroupDiscovery) *builtInDiscovery {
	d := &builtInDiscovery{
		groups:    groups,
		versions:  map[schema.GroupVersion]bool{},
		resources: map[schema.GroupResource]bool{},
		byKind:    map[schema.GroupVersionKind]storage.Kind{},
		byPrefix:  map[string]storage.Kind{},
	}
	for _, g := range groups {
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			d.versions[gv] = true
			for i := range v.Resources {
				d.add(gv, &v.Resources[i])
			}
		}
	}
	return d
}

func (d *builtInDiscovery) add(gv schema.GroupVersion, r *apidiscoveryv2.APIResourceDiscovery) {
	resource := gv.WithResource(r.Resource)
	d.resources[resource.GroupResource()] = true
	if r.ResponseKind == nil || !slices.Contains(r.Verbs, "watch") || !slices.Contains(r.Verbs, "delete") {
		return
	}
	kind := storage.Kind{
		Resource: resource, Kind: r.ResponseKind.Kind, Namespaced: r.Scope == apidiscoveryv2.ScopeNamespace,
		Prefix: KeyPrefix(resource.GroupResource()),
	}
	d.byKind[gv.WithKind(kind.Kind)] = kind
	if _, ok := d.byPrefix[kind.Prefix]; !ok {
		d.byPrefix[kind.Prefix] = kind
	}
}

// KeyPrefix returns the prefix of the keys of a built-in resource. Events of both groups have the same keys.
func KeyPrefix(resource schema.GroupResource) string {
	if resource.Group == eventsv1.GroupName {
		resource.Group = ""
	}
	return storage.ResourcePrefix(resource) + "/"
}

func (b *BuiltIns) load(ctx context.Context) (*builtInDiscovery, error) {
	if loaded := b.loaded.Load(); loaded != nil {
		return loaded, nil
	}
	if b.Next == nil {
		return nil, errors.New("the server is not ready yet")
	}
	core, err := b.groupsBelow(ctx, "/"+apiPrefix)
	if err != nil {
		return nil, err
	}
	groups, err := b.groupsBelow(ctx, "/"+apisPrefix)
	if err != nil {
		return nil, err
	}
	loaded := newBuiltInDiscovery(slices.Concat(core, groups))
	b.loaded.Store(loaded)
	return loaded, nil
}

// groupsBelow reads the aggregated discovery below a path, or nothing if the path is not found.
func (b *BuiltIns) groupsBelow(ctx context.Context, path string) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	list, status, err := read[apidiscoveryv2.APIGroupDiscoveryList](ctx, b.Next, "below "+path, path, acceptAggregated)
	if status == http.StatusNotFound {
		return nil, nil
	}
	return list.Items, err
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
	for _, g := range loaded.groups {
		if g.Name != group {
			continue
		}
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				names := apiextensions.CustomResourceDefinitionNames{Plural: r.Resource, Singular: r.SingularResource, ShortNames: r.ShortNames}
				if r.ResponseKind != nil {
					names.Kind, names.ListKind = r.ResponseKind.Kind, r.ResponseKind.Kind+"List"
				}
				all = append(all, names)
			}
		}
	}
	return all, nil
}

// unversioned are the kinds of the core group that are not resources. Clients would interpret an object of
// such a kind as an error, a list or options.
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

// read reads a discovery document, which of describes in errors.
func read[T any](ctx context.Context, h http.Handler, of, path, accept string) (document T, status int, err error) {
	status, body := get(ctx, h, path, accept)
	if status != http.StatusOK {
		return document, status, fmt.Errorf("the built-in discovery %s returned %d", of, status)
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return document, status, fmt.Errorf("reading the built-in discovery %s: %w", of, err)
	}
	return document, status, nil
}

// get sends a request to a handler in this process.
func get(ctx context.Context, h http.Handler, path, accept string) (status int, body []byte) {
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Path: path, Verb: "get"})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	r.RequestURI = path
	r.Header = http.Header{"Accept": {accept}}
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
func (b *BuiltIns) Kind(ctx context.Context, kind schema.GroupVersionKind) (storage.Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return storage.Kind{}, false, err
	}
	found, ok := loaded.byKind[kind]
	return found, ok, nil
}

// OfPrefix returns the built-in resource with a key prefix, or false.
func (b *BuiltIns) OfPrefix(ctx context.Context, prefix string) (storage.Kind, bool, error) {
	loaded, err := b.load(ctx)
	if err != nil {
		return storage.Kind{}, false, err
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
	list, _, err := read[metav1.APIResourceList](ctx, b.Next, "of "+gv.String(), "/"+pathOf(gv), runtime.ContentTypeJSON)
	// A subset may contain only some resources with their subresources.
	return slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool {
		resource, _, _ := strings.Cut(r.Name, "/")
		return !loaded.resources[schema.GroupResource{Group: gv.Group, Resource: resource}]
	}), err
}

// builtInOpenAPI describes the wrapped handler's OpenAPI documents.
type builtInOpenAPI struct {
	// index are the documents of v3 by path; nil if there is no OpenAPI.
	index map[string]handler3.OpenAPIV3DiscoveryGroupVersion
	// versions are the group versions with a document of v3.
	versions map[schema.GroupVersion]bool
	// hash changes with the documents, i.e. with the release of the server.
	hash string
}

// openapi returns the index of the wrapped handler's documents.
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
	known := &builtInOpenAPI{hash: hashOf(index)}
	if len(index) > 0 {
		var all handler3.OpenAPIV3Discovery
		if err := json.Unmarshal(index, &all); err != nil {
			return nil, fmt.Errorf("reading the built-in OpenAPI index: %w", err)
		}
		known.index, known.versions = all.Paths, discovery.versions
	}
	b.documents.Store(known)
	return known, nil
}

// document reads a document of the wrapped handler; empty if it is not found.
func (b *BuiltIns) document(ctx context.Context, path string) ([]byte, error) {
	status, body := get(ctx, b.Next, path, runtime.ContentTypeJSON)
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
