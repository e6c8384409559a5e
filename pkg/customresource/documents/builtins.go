package documents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

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
