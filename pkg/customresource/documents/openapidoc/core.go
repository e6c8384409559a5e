package openapidoc

import (
	"encoding/json"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	// coreGroup replaces the name of the core group in upstream's builder. It is part of the names of types,
	// as for built-in ones.
	coreGroup     = "core"
	kindExtension = "x-kubernetes-group-version-kind"
)

// buildable returns a definition that upstream's builder accepts.
func buildable(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	if crd.Spec.Group != "" {
		return crd
	}
	named := *crd
	named.Spec.Group = coreGroup
	return &named
}

// corePath returns the real path for a path built with the replaced group.
func corePath(path string) string {
	if rest, ok := strings.CutPrefix(path, "/apis/"+coreGroup+"/"); ok {
		return "/api/" + rest
	}
	return path
}

// ungroup removes the replaced group from the extensions with kinds.
func ungroup(extensions spec.Extensions) {
	kinds := []any{extensions[kindExtension]}
	if several, ok := kinds[0].([]any); ok {
		kinds = several
	}
	for _, kind := range kinds {
		if kind, ok := kind.(map[string]any); ok && kind["group"] == coreGroup {
			kind["group"] = ""
		}
	}
}

// coreV2 removes the replaced group from a document.
func coreV2(document *spec.Swagger) {
	paths := make(map[string]spec.PathItem, len(document.Paths.Paths))
	for path, item := range document.Paths.Paths {
		for _, operation := range []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
			if operation != nil {
				ungroup(operation.Extensions)
			}
		}
		paths[corePath(path)] = item
	}
	document.Paths.Paths = paths
	for _, s := range document.Definitions {
		ungroup(s.Extensions)
	}
}

// coreV3 returns a document without the replaced group.
func coreV3(built *spec3.OpenAPI) (*spec3.OpenAPI, error) {
	data, err := json.Marshal(built)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	var document spec3.OpenAPI
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	paths := make(map[string]*spec3.Path, len(document.Paths.Paths))
	for path, item := range document.Paths.Paths {
		for _, operation := range []*spec3.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
			if operation != nil {
				ungroup(operation.Extensions)
			}
		}
		paths[corePath(path)] = item
	}
	document.Paths.Paths = paths
	for _, s := range document.Components.Schemas {
		ungroup(s.Extensions)
	}
	return &document, nil
}
