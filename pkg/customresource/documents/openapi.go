package documents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// serveV2 serves /openapi/v2, which older clients use.
func (s *documentSet) serveV2(w http.ResponseWriter, r *http.Request) (bool, error) {
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		return false, err
	}
	if builtIn.index == nil {
		return false, nil // the server has no OpenAPI
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
		spec.Hash += " only " + strings.Join(shown, "") // also if the list is empty
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
	return true, s.library.Serve(w, r, spec)
}

// pathsBelow reduces a document of /openapi/v2 to paths with one of the prefixes.
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

// serveV3Index serves /openapi/v3.
func (s *documentSet) serveV3Index(w http.ResponseWriter, r *http.Request) (bool, error) {
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		return false, err
	}
	paths := map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}
	maps.Copy(paths, builtIn.index)
	for gv := range s.versions {
		paths[pathOf(gv)] = documentAt(pathOf(gv), s.v3(gv, builtIn))
	}
	roots, err := s.roots(r.Context(), builtIn)
	if err != nil {
		return false, err
	}
	for _, name := range roots {
		paths[name] = documentAt(name, s.root(name, builtIn))
	}
	data, err := json.Marshal(handler3.OpenAPIV3Discovery{Paths: paths})
	if err != nil {
		return false, err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Etag", strconv.Quote(hashOf(data)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return true, nil
}

// documentAt returns the entry of a document in the index.
func documentAt(path string, spec openapidoc.Spec) handler3.OpenAPIV3DiscoveryGroupVersion {
	return handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: openapiV3Path + "/" + path + "?" + url.Values{"hash": {spec.ETag}}.Encode()}
}

// v3 returns the specification of the document of a group version.
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

// serveV3 serves /openapi/v3/apis/<group>/<version> and /openapi/v3/api/<version>.
func (s *documentSet) serveV3(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) (bool, error) {
	if len(s.versions[gv]) == 0 && !s.only {
		return false, nil
	}
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		return false, err
	}
	if len(s.versions[gv]) == 0 && !builtIn.versions[gv] {
		return false, nil
	}
	return s.serveSpec(w, r, s.v3(gv, builtIn), gv.Version)
}

// documentHash identifies a document that may not have been created yet.
func documentHash(s openapidoc.Spec) string {
	var b bytes.Buffer
	b.WriteString(s.Hash)
	for _, d := range s.Definitions {
		b.WriteString(d.Hash)
		b.WriteString(d.Version)
	}
	return hashOf(b.Bytes())
}

// serveSpec serves a v3 document. last is the last segment of its path.
func (s *documentSet) serveSpec(w http.ResponseWriter, r *http.Request, spec openapidoc.Spec, last string) (bool, error) {
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != spec.ETag {
			// A relative URL, because the prefix of the path is unknown.
			w.Header().Set("Location", last+"?"+url.Values{"hash": {spec.ETag}}.Encode())
			w.WriteHeader(http.StatusMovedPermanently)
			return true, nil
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	if err := s.library.Serve(w, r, spec); err != nil {
		w.Header().Del("Cache-Control")
		w.Header().Del("Expires")
		return false, err
	}
	return true, nil
}

const versionPath = "version"

func rootHandlerFor(path []string) handler {
	if len(path) == 1 && path[0] == versionPath {
		return func(s *documentSet, w http.ResponseWriter, r *http.Request) (bool, error) {
			s.builtIns.Next.ServeHTTP(w, r)
			return true, nil
		}
	}
	if len(path) < 3 || path[0] != "openapi" || path[1] != "v3" {
		return nil
	}
	name := strings.Join(path[2:], "/")
	return func(s *documentSet, w http.ResponseWriter, r *http.Request) (bool, error) {
		return s.serveRoot(w, r, name)
	}
}

// roots returns the names of v3 documents that do not belong to a group version, i.e. of discovery and of the
// server version. They are left to the wrapped handler unless the set is restricted.
func (s *documentSet) roots(ctx context.Context, builtIn *builtInOpenAPI) ([]string, error) {
	if !s.only || builtIn.index == nil { // or the server has no OpenAPI
		return nil, nil
	}
	loaded, err := s.builtIns.load(ctx)
	if err != nil {
		return nil, err
	}
	groups := maps.Clone(s.groups)
	for _, g := range loaded.groups {
		groups[g.Name] = true
	}
	delete(groups, "")
	all := []string{apiPrefix, apisPrefix, versionPath}
	for group := range groups {
		all = append(all, apisPrefix+"/"+group)
	}
	return all, nil
}

// root returns the specification of such a document.
func (s *documentSet) root(name string, builtIn *builtInOpenAPI) openapidoc.Spec {
	spec := openapidoc.V3()
	spec.Hash = builtIn.hash + "/" + name
	spec.BuiltIn = func(ctx context.Context) ([]byte, error) {
		group, isGroup := strings.CutPrefix(name, apisPrefix+"/")
		if !isGroup {
			return s.builtIns.document(ctx, openapiV3Path+"/"+name)
		}
		groups, err := s.builtIns.document(ctx, openapiV3Path+"/"+apisPrefix)
		if err != nil || len(groups) == 0 {
			return nil, err
		}
		return groupDocument(groups, group)
	}
	spec.ETag = documentHash(spec)
	return spec
}

// serveRoot serves such a document at /openapi/v3/<name>.
func (s *documentSet) serveRoot(w http.ResponseWriter, r *http.Request, name string) (bool, error) {
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		return false, err
	}
	roots, err := s.roots(r.Context(), builtIn)
	if err != nil {
		return false, err
	}
	if !slices.Contains(roots, name) {
		return false, nil
	}
	return s.serveSpec(w, r, s.root(name, builtIn), name[strings.LastIndexByte(name, '/')+1:])
}

// groupDocument derives the discovery document of a group from the one of all groups, because the wrapped
// handler has none for groups of custom resources.
func groupDocument(groups []byte, group string) ([]byte, error) {
	groups = bytes.ReplaceAll(groups, []byte(`meta.v1.APIGroupList"}`), []byte(`meta.v1.APIGroup"}`))
	var document map[string]any
	if err := json.Unmarshal(groups, &document); err != nil {
		return nil, fmt.Errorf("reading the built-in OpenAPI document of groups: %w", err)
	}
	paths, _ := document["paths"].(map[string]any)
	path, _ := paths["/"+apisPrefix+"/"].(map[string]any)
	operation, ok := path["get"].(map[string]any)
	if !ok {
		return nil, errors.New("the built-in OpenAPI document of groups has no operation to get them")
	}
	operation["description"], operation["operationId"], operation["tags"] = "get information of a group", "getAPIGroup_"+group, []string{group}
	document["paths"] = map[string]any{"/" + apisPrefix + "/" + group + "/": path}
	return json.Marshal(document)
}
