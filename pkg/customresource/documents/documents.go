// Package documents serves discovery and OpenAPI: the documents of the wrapped handler for built-in resources, merged
// with the definitions of the logical cluster. Logical clusters with the same set of definitions share documents.
//
//	openapidoc   assembles OpenAPI documents from one part per definition
//	openapigate  removes parameters with a disabled feature gate
package documents

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents/openapidoc"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// maxSets limits the sets of definitions with cached discovery.
	maxSets = 256
	// documentBytes limits the memory of all OpenAPI documents.
	documentBytes = 64 << 20
)

// Lister lists all definitions of a logical cluster.
type Lister interface {
	List(ctx context.Context, cluster request.Cluster) ([]*definitions.Definition, error)
}

// Documents serves discovery and OpenAPI of the wrapped handler, merged with the definitions of the logical cluster.
type Documents struct {
	source   Lister
	builtIns *BuiltIns
	library  *openapidoc.Library
	made     prometheus.Counter

	mu   sync.Mutex
	sets map[string]*documentSet // by key
}

// NewDocuments returns the documents of the definitions that source lists, merged with the built-in ones. registerer
// may be nil.
func NewDocuments(source Lister, b *BuiltIns, registerer prometheus.Registerer) *Documents {
	return &Documents{
		source: source, builtIns: b, library: openapidoc.NewLibrary(documentBytes), sets: map[string]*documentSet{},
		// The number is independent of the number of logical clusters.
		made: instruments.NewCounter(registerer, "shardplane_custom_resources_document_sets_total",
			"Sets of definitions for which discovery and OpenAPI documents were created. A set is kept while clients request it."),
	}
}

// Expire removes sets and documents that have not been requested since before. Sets reference schemas.
func (d *Documents) Expire(before time.Time) {
	d.library.Expire(before)
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.sets, func(_ string, s *documentSet) bool { return s.used.Before(before) })
}

// Size estimates the memory of documents, with 1 KiB for each set.
func (d *Documents) Size() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.library.Size() + int64(len(d.sets))<<10
}

// find returns the documents of a set, which newSet creates if necessary.
func (d *Documents) find(key string, newSet func(key string) *documentSet) *documentSet {
	d.mu.Lock()
	defer d.mu.Unlock()
	set, ok := d.sets[key]
	if !ok {
		if len(d.sets) >= maxSets {
			oldest := slices.MinFunc(slices.Collect(maps.Values(d.sets)), func(a, b *documentSet) int { return a.used.Compare(b.used) })
			delete(d.sets, oldest.key)
		}
		set = newSet(key)
		d.made.Inc()
		d.sets[key] = set
	}
	set.used = time.Now()
	return set
}

// Serve serves a document, and reports whether it did. All other documents are left to the wrapped handler.
func (d *Documents) Serve(w http.ResponseWriter, r *http.Request, cluster request.Cluster) bool {
	return serve(w, r, handlerFor, func(ctx context.Context) (*documentSet, error) {
		set, err := d.set(ctx, cluster)
		if err != nil || len(set.definitions) == 0 {
			return nil, err
		}
		return set, nil
	})
}

// ServeOnly serves documents that contain only some built-in resources and definitions. It reports whether it
// did; there are no other documents.
func (d *Documents) ServeOnly(w http.ResponseWriter, r *http.Request, builtIn map[schema.GroupResource]bool, all []*definitions.Definition) bool {
	find := func(path []string) handler {
		if found := handlerFor(path); found != nil {
			return found
		}
		return rootHandlerFor(path)
	}
	return serve(w, r, find, func(ctx context.Context) (*documentSet, error) {
		some, err := d.builtIns.only(ctx, builtIn)
		if err != nil {
			return nil, err
		}
		sorted := sortedDefinitions(definitions.Limited(ctx, all))
		var names []string
		for resource := range some.loaded.Load().resources {
			names = append(names, resource.String()+",")
		}
		slices.Sort(names)
		return d.find(keyOf("only "+hashOf([]byte(strings.Join(names, "")))+" ", sorted), func(key string) *documentSet {
			set := d.newSet(key, sorted)
			set.builtIns, set.only = some, true
			return set
		}), nil
	})
}

// serve serves a request with the handler of its path and a set, unless one of them is nil.
func serve(w http.ResponseWriter, r *http.Request, find func(path []string) handler, set func(context.Context) (*documentSet, error)) (served bool) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	handle := find(strings.Split(strings.Trim(r.URL.Path, "/"), "/"))
	if handle == nil {
		return false
	}
	documents, err := set(r.Context())
	if err == nil && documents != nil {
		served, err = handle(documents, w, r)
	}
	if err != nil {
		responsewriters.ErrorNegotiated(request.Unavailable(err.Error()), apiextensionsserver.Codecs, schema.GroupVersion{}, w, r)
		return true
	}
	return served
}

func handlerFor(path []string) handler {
	switch strings.Join(path, "/") {
	case apiPrefix:
		return (*documentSet).serveCore
	case apisPrefix:
		return (*documentSet).serveGroups
	case "openapi/v2":
		return (*documentSet).serveV2
	case "openapi/v3":
		return (*documentSet).serveV3Index
	default:
	}
	ofVersion, isV3 := (*documentSet).serveVersion, len(path) > 2 && path[0] == "openapi" && path[1] == "v3"
	if isV3 {
		ofVersion, path = (*documentSet).serveV3, path[2:]
	}
	var gv schema.GroupVersion
	switch {
	case len(path) == 2 && path[0] == apiPrefix:
		gv.Version = path[1]
	case len(path) == 3 && path[0] == apisPrefix:
		gv.Group, gv.Version = path[1], path[2]
	case len(path) == 2 && path[0] == apisPrefix && !isV3:
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) (bool, error) {
			return s.serveGroup(w, r, path[1])
		}
	default:
		return nil
	}
	return func(s *documentSet, w http.ResponseWriter, r *http.Request) (bool, error) {
		return ofVersion(s, w, r, gv)
	}
}

// set returns the documents for the definitions of a logical cluster.
func (d *Documents) set(ctx context.Context, cluster request.Cluster) (*documentSet, error) {
	listed, err := d.source.List(ctx, cluster)
	if err != nil {
		return nil, err
	}
	// Built-in resources take precedence.
	sorted := slices.DeleteFunc(slices.Clone(listed), func(of *definitions.Definition) bool {
		return d.builtIns.Serves(ctx, of.Schema.Resource)
	})
	sorted = sortedDefinitions(definitions.Limited(ctx, sorted))
	return d.find(keyOf("", sorted), func(key string) *documentSet { return d.newSet(key, sorted) }), nil
}

func (d *Documents) newSet(key string, all []*definitions.Definition) *documentSet {
	s := &documentSet{
		key:         key,
		builtIns:    d.builtIns,
		library:     d.library,
		definitions: all,
		versions:    map[schema.GroupVersion][]*definitions.Definition{},
		groups:      map[string]bool{},
	}
	for _, definition := range all {
		for _, v := range definition.Schema.Spec().Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: definition.Schema.Resource.Group, Version: v.Name}
				s.versions[gv] = append(s.versions[gv], definition)
				s.groups[gv.Group] = true
			}
		}
	}
	return s
}

func sortedDefinitions(all []*definitions.Definition) []*definitions.Definition {
	return slices.SortedFunc(slices.Values(all), func(a, b *definitions.Definition) int {
		return strings.Compare(a.Schema.CRD().Name, b.Schema.CRD().Name)
	})
}

func keyOf(kind string, sorted []*definitions.Definition) string {
	sum := sha256.New()
	for _, definition := range sorted {
		sum.Write([]byte(definition.Schema.Hash))
		if definition.Terminating {
			sum.Write([]byte{1})
		}
		if definition.Objects != nil {
			sum.Write([]byte{2})
		}
		if definition.Verbs != nil {
			sum.Write([]byte(definition.Verbs.String()))
		}
	}
	return kind + hex.EncodeToString(sum.Sum(nil))
}

// only returns a subset of the wrapped handler's resources.
func (b *BuiltIns) only(ctx context.Context, resources map[schema.GroupResource]bool) (*BuiltIns, error) {
	whole, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	openapi, err := b.openapi(ctx)
	if err != nil {
		return nil, err
	}
	loaded := newBuiltInDiscovery(someOf(whole.groups, resources))
	documents := &builtInOpenAPI{
		hash: openapi.hash, versions: map[schema.GroupVersion]bool{}, index: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{},
	}
	for gv := range loaded.versions {
		if openapi.versions[gv] {
			documents.versions[gv] = true
			documents.index[pathOf(gv)] = documentAt(pathOf(gv), (&documentSet{builtIns: b}).v3(gv, openapi))
		}
	}
	some := &BuiltIns{Next: b.Next}
	some.loaded.Store(loaded)
	some.documents.Store(documents)
	return some, nil
}

func someOf(groups []apidiscoveryv2.APIGroupDiscovery, resources map[schema.GroupResource]bool) []apidiscoveryv2.APIGroupDiscovery {
	var some []apidiscoveryv2.APIGroupDiscovery
	for _, g := range groups {
		group := apidiscoveryv2.APIGroupDiscovery{TypeMeta: g.TypeMeta, ObjectMeta: g.ObjectMeta}
		for _, v := range g.Versions {
			v.Resources = slices.DeleteFunc(slices.Clone(v.Resources), func(r apidiscoveryv2.APIResourceDiscovery) bool {
				return !resources[schema.GroupResource{Group: g.Name, Resource: r.Resource}]
			})
			if len(v.Resources) > 0 {
				group.Versions = append(group.Versions, v)
			}
		}
		if len(group.Versions) > 0 {
			some = append(some, group)
		}
	}
	return some
}
