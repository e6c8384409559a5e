package documents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/shardplane/shardplane/pkg/customresource/documents/openapidoc"
)

const versionPath = "version"

// rootHandlerFor returns what answers a path that is no group version's, or nil.
func rootHandlerFor(path []string) func(*documentSet, http.ResponseWriter, *http.Request) bool {
	if len(path) == 1 && path[0] == versionPath {
		return (*documentSet).serveServerVersion
	}
	if len(path) < 3 || path[0] != "openapi" || path[1] != "v3" {
		return nil
	}
	name := strings.Join(path[2:], "/")
	return func(s *documentSet, w http.ResponseWriter, r *http.Request) bool { return s.serveRoot(w, r, name) }
}

// roots returns the documents of v3 that are not of a group version: of discovery and of the version of
// the server. A set that shows everything leaves them to the wrapped handler.
func (s *documentSet) roots(ctx context.Context, builtIn *builtInOpenAPI) ([]string, error) {
	if !s.only || len(builtIn.index) == 0 { // or the server has no OpenAPI
		return nil, nil
	}
	loaded, err := s.builtIns.load(ctx)
	if err != nil {
		return nil, err
	}
	all := []string{apiPrefix, apisPrefix, versionPath}
	for _, g := range loaded.groups {
		all = append(all, apisPrefix+"/"+g.Name)
	}
	for group := range s.groups {
		if group != "" {
			all = append(all, apisPrefix+"/"+group)
		}
	}
	return all, nil
}

// root says what such a document is made of.
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

// serveRoot answers /openapi/v3/<name> for such a document.
func (s *documentSet) serveRoot(w http.ResponseWriter, r *http.Request, name string) bool {
	builtIn, err := s.builtIns.openapi(r.Context())
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	roots, err := s.roots(r.Context(), builtIn)
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	if !slices.Contains(roots, name) {
		return false
	}
	s.serveSpec(w, r, s.root(name, builtIn), name[strings.LastIndexByte(name, '/')+1:])
	return true
}

// serveServerVersion answers /version.
func (s *documentSet) serveServerVersion(w http.ResponseWriter, r *http.Request) bool {
	s.builtIns.Next.ServeHTTP(w, r)
	return true
}

// groupDocument returns the document of discovery of a group, made from that of all groups, because the
// wrapped handler has none for groups of custom resources.
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
