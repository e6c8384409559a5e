package documents

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents/openapidoc"
)

// serveV2 answers /openapi/v2, which older clients ask for.
func (s *documentSet) serveV2(w http.ResponseWriter, r *http.Request) bool {
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	if len(builtIn.index) == 0 {
		return false // the server has no OpenAPI
	}
	spec := openapidoc.V2()
	spec.Hash = builtIn.hash
	spec.BuiltIn = func(ctx context.Context) ([]byte, error) { return s.builtIns.document(ctx, openapiV2Path) }
	if s.only {
		var shown []string
		for gv := range builtIn.versions {
			shown = append(shown, "/"+pathOf(gv)+"/")
		}
		slices.Sort(shown)
		spec.Hash += " only " + strings.Join(shown, "") // also where it shows none of them
		spec.BuiltIn = func(ctx context.Context) ([]byte, error) {
			whole, err := s.builtIns.document(ctx, openapiV2Path)
			if err != nil || whole == nil {
				return nil, err
			}
			return pathsBelow(whole, shown)
		}
	}
	for _, d := range s.definitions {
		for i := range d.Schema.Spec().Versions {
			if v := &d.Schema.Spec().Versions[i]; v.Served {
				spec.Definitions = append(spec.Definitions, documented(d, v.Name))
			}
		}
	}
	spec.ETag = documentHash(spec)
	if err := s.library.Serve(w, r, spec); err != nil {
		writeUnavailable(w, r, err)
	}
	return true
}

// pathsBelow returns a document of /openapi/v2 with the paths only that begin with some prefixes.
func pathsBelow(document []byte, prefixes []string) ([]byte, error) {
	var some map[string]json.RawMessage
	var paths map[string]json.RawMessage
	if err := json.Unmarshal(document, &some); err != nil {
		return nil, fmt.Errorf("reading the built-in OpenAPI document: %w", err)
	}
	if err := json.Unmarshal(some["paths"], &paths); err != nil {
		return nil, fmt.Errorf("reading the paths of the built-in OpenAPI document: %w", err)
	}
	maps.DeleteFunc(paths, func(path string, _ json.RawMessage) bool {
		return !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
	})
	var err error
	if some["paths"], err = json.Marshal(paths); err != nil {
		return nil, fmt.Errorf("encoding the paths of the built-in OpenAPI document: %w", err)
	}
	return json.Marshal(some)
}

func documented(d *definitions.Definition, version string) openapidoc.Definition {
	return openapidoc.Definition{CRD: d.Schema.CRD(), Version: version, Hash: d.Schema.Hash}
}

// serveV3Index answers /openapi/v3.
func (s *documentSet) serveV3Index(w http.ResponseWriter, r *http.Request) bool {
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	if len(builtIn.index) > 0 {
		if err := json.Unmarshal(builtIn.index, &index); err != nil {
			writeUnavailable(w, r, fmt.Errorf("reading the built-in OpenAPI index: %w", err))
			return true
		}
	}
	for gv := range s.versions {
		index.Paths[pathOf(gv)] = handler3.OpenAPIV3DiscoveryGroupVersion{
			ServerRelativeURL: v3URL(pathOf(gv), s.v3(gv, builtIn).ETag),
		}
	}
	roots, err := s.roots(r.Context(), builtIn)
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	for _, name := range roots {
		index.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: v3URL(name, s.root(name, builtIn).ETag)}
	}
	data, err := json.Marshal(index)
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Etag", strconv.Quote(hashOf(data)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return true
}

// v3URL is where a document is, as long as its hash is this one.
func v3URL(path, hash string) string {
	return openapiV3Path + "/" + path + "?" + url.Values{"hash": {hash}}.Encode()
}

// v3 says what the document of a group version is made of.
func (s *documentSet) v3(gv schema.GroupVersion, builtIn *builtInOpenAPI) openapidoc.Spec {
	spec := openapidoc.V3()
	spec.Hash = builtIn.hash
	if builtIn.versions[gv] {
		spec.Hash += "/" + gv.String()
		spec.BuiltIn = func(ctx context.Context) ([]byte, error) {
			return s.builtIns.document(ctx, openapiV3Path+"/"+pathOf(gv))
		}
	} else {
		spec.BuiltIn = func(context.Context) ([]byte, error) { return nil, nil }
	}
	for _, d := range s.versions[gv] {
		spec.Definitions = append(spec.Definitions, documented(d, gv.Version))
	}
	spec.ETag = documentHash(spec)
	return spec
}

// serveV3 answers /openapi/v3/apis/<group>/<version> and /openapi/v3/api/<version>.
func (s *documentSet) serveV3(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) bool {
	if len(s.versions[gv]) == 0 && !s.only {
		return false
	}
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	if len(s.versions[gv]) == 0 && !builtIn.versions[gv] {
		return false
	}
	s.serveSpec(w, r, s.v3(gv, builtIn), gv.Version)
	return true
}
