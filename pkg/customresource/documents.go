package customresource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/request"
)

// rememberedSets is for how many sets of definitions documents are kept.
// Logical clusters with the same set share them.
const rememberedSets = 256

// documents serves discovery and OpenAPI: what the wrapped handler says, merged
// with the definitions of the logical cluster.
type documents struct {
	source   Source
	builtIns *builtIns
	sets     *lru.Cache // of a set's key to *documentSet
	openapi  *openapiDocuments
}

func newDocuments(source Source, b *builtIns) *documents {
	return &documents{source: source, builtIns: b, sets: lru.New(rememberedSets), openapi: newOpenAPIDocuments()}
}

// documentSet is the documents of one set of definitions. Each is made when it
// is first asked for.
type documentSet struct {
	key         string
	builtIns    *builtIns
	definitions []*Definition
	versions    map[schema.GroupVersion][]*Definition
	groups      map[string]bool

	discovery discoveryDocuments
	openapi   *openapiDocuments
}

// serve answers a request for a document, and says whether it did: the others
// are the wrapped handler's.
func (d *documents) serve(w http.ResponseWriter, r *http.Request, cluster request.Cluster) bool {
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

// handlerFor returns what answers a path, or nil.
func (d *documents) handlerFor(path []string) func(*documentSet, http.ResponseWriter, *http.Request) bool {
	switch {
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
	case len(path) == 5 && path[0] == "openapi" && path[1] == "v3" && path[2] == apisPrefix:
		gv := schema.GroupVersion{Group: path[3], Version: path[4]}
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) bool { return s.serveV3(w, r, gv) }
	default:
		return nil
	}
}

// set returns the documents for the definitions of a logical cluster.
func (d *documents) set(ctx context.Context, cluster request.Cluster) (*documentSet, error) {
	listed, err := d.source.List(ctx, cluster)
	if err != nil {
		return nil, err
	}
	definitions := slices.Clone(listed)
	slices.SortFunc(definitions, func(a, b *Definition) int {
		return strings.Compare(a.Schema.crd.Name, b.Schema.crd.Name)
	})
	sum := sha256.New()
	for _, definition := range definitions {
		sum.Write([]byte(definition.Schema.Hash))
		if definition.Terminating {
			sum.Write([]byte{1})
		}
	}
	key := hex.EncodeToString(sum.Sum(nil))
	if known, ok := d.sets.Get(key); ok {
		set, _ := known.(*documentSet)
		return set, nil
	}
	set := d.newSet(key, definitions)
	d.sets.Add(key, set)
	return set, nil
}

func (d *documents) newSet(key string, definitions []*Definition) *documentSet {
	s := &documentSet{
		key:         key,
		builtIns:    d.builtIns,
		openapi:     d.openapi,
		definitions: definitions,
		versions:    map[schema.GroupVersion][]*Definition{},
		groups:      map[string]bool{},
	}
	for _, definition := range definitions {
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
