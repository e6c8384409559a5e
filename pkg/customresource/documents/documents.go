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
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents/openapidoc"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// rememberedSets is for how many sets of definitions discovery is kept.
	// Logical clusters with the same set share it.
	rememberedSets = 256
	// documentBytes is how much memory OpenAPI documents take, of all sets
	// together.
	documentBytes = 64 << 20
)

// Lister says what there is to tell of.
type Lister interface {
	// List returns all definitions of a logical cluster.
	List(ctx context.Context, cluster request.Cluster) ([]*definitions.Definition, error)
}

// Documents serves discovery and OpenAPI: what the wrapped handler says, merged
// with the definitions of the logical cluster.
type Documents struct {
	source   Lister
	builtIns *BuiltIns
	library  *openapidoc.Library
	made     prometheus.Counter

	mu   sync.Mutex
	sets map[string]*documentSet // by their keys
}

// New returns the documents of what source lists, merged with the built-in ones. registerer may be nil.
func New(source Lister, b *BuiltIns, registerer prometheus.Registerer) *Documents {
	return &Documents{made: newMadeSets(registerer), source: source, builtIns: b, sets: map[string]*documentSet{}, library: openapidoc.NewLibrary(documentBytes)}
}

// Expire drops what nobody has asked for since before. Sets hold schemas.
func (d *Documents) Expire(before time.Time) {
	d.library.Expire(before)
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.sets, func(_ string, s *documentSet) bool { return s.used.Before(before) })
}

// Size is about how many bytes of memory what is kept takes: documents, and a
// kilobyte for each set of definitions.
func (d *Documents) Size() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.library.Size() + int64(len(d.sets))<<10
}

// find returns the documents of a set, which newSet makes if there are none.
func (d *Documents) find(key string, newSet func(key string) *documentSet) *documentSet {
	d.mu.Lock()
	defer d.mu.Unlock()
	set, ok := d.sets[key]
	if !ok {
		if len(d.sets) >= rememberedSets {
			oldest := ""
			for k, s := range d.sets {
				if oldest == "" || s.used.Before(d.sets[oldest].used) {
					oldest = k
				}
			}
			delete(d.sets, oldest)
		}
		set = newSet(key)
		d.made.Inc()
		d.sets[key] = set
	}
	set.used = time.Now()
	return set
}

// Serve answers a request for a document, and reports whether it did: the others
// are the wrapped handler's.
func (d *Documents) Serve(w http.ResponseWriter, r *http.Request, cluster request.Cluster) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	handler := d.handlerFor(path)
	if handler == nil {
		return false
	}
	set, err := d.set(r.Context(), cluster)
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	if len(set.definitions) == 0 {
		return false
	}
	return handler(set, w, r)
}

// ServeOnly answers a request for a document that tells of some built-in resources and
// definitions, and of nothing else. It reports whether it did: there are no others.
func (d *Documents) ServeOnly(w http.ResponseWriter, r *http.Request, builtIn map[schema.GroupResource]bool, all []*definitions.Definition) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	handler := d.handlerFor(path)
	if handler == nil {
		handler = rootHandlerFor(path)
	}
	if handler == nil {
		return false
	}
	some, err := d.builtIns.only(r.Context(), builtIn)
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	sorted := sortedDefinitions(definitions.Limited(r.Context(), all))
	sum := sha256.New()
	for _, resource := range some.sorted() {
		sum.Write([]byte(resource.String() + ","))
	}
	return handler(d.find(keyOf("only "+hex.EncodeToString(sum.Sum(nil))+" ", sorted), func(key string) *documentSet {
		set := d.newSet(key, sorted)
		set.builtIns, set.only = some, true
		return set
	}), w, r)
}

// handlerFor returns what answers a path, or nil.
func (d *Documents) handlerFor(path []string) func(*documentSet, http.ResponseWriter, *http.Request) bool {
	switch {
	case len(path) == 1 && path[0] == apiPrefix:
		return (*documentSet).serveCore
	case len(path) == 2 && path[0] == apiPrefix:
		gv := schema.GroupVersion{Version: path[1]}
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) bool { return s.serveVersion(w, r, gv) }
	case len(path) == 1 && path[0] == apisPrefix:
		return (*documentSet).serveGroups
	case len(path) == 2 && path[0] == apisPrefix:
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) bool { return s.serveGroup(w, r, path[1]) }
	case len(path) == 3 && path[0] == apisPrefix:
		gv := schema.GroupVersion{Group: path[1], Version: path[2]}
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) bool { return s.serveVersion(w, r, gv) }
	case len(path) == 2 && path[0] == "openapi" && path[1] == "v2":
		return (*documentSet).serveV2
	case len(path) == 2 && path[0] == "openapi" && path[1] == "v3":
		return (*documentSet).serveV3Index
	case len(path) == 4 && path[0] == "openapi" && path[1] == "v3" && path[2] == apiPrefix:
		gv := schema.GroupVersion{Version: path[3]}
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) bool { return s.serveV3(w, r, gv) }
	case len(path) == 5 && path[0] == "openapi" && path[1] == "v3" && path[2] == apisPrefix:
		gv := schema.GroupVersion{Group: path[3], Version: path[4]}
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) bool { return s.serveV3(w, r, gv) }
	default:
		return nil
	}
}

// set returns the documents for the definitions of a logical cluster.
func (d *Documents) set(ctx context.Context, cluster request.Cluster) (*documentSet, error) {
	listed, err := d.source.List(ctx, cluster)
	if err != nil {
		return nil, err
	}
	// What is built in is not served otherwise.
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
