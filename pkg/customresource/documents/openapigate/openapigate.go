// Package openapigate adapts the parameters of list and watch requests in OpenAPI documents. It removes parameters with
// a disabled feature gate, and documents extensions, because upstream generates the documents from Go types.
package openapigate

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	shardSelector = "shardSelector"
	upstreamPaths = "  - object.metadata.namespace\n"
	ourPaths      = upstreamPaths + "  - object.metadata.cluster (the logical cluster, an extension of this server)\n"
)

// described returns the description of a parameter including extensions.
func described(name, description string) string {
	if name != shardSelector || strings.Contains(description, ourPaths) {
		return description
	}
	return strings.Replace(description, upstreamPaths, ourPaths, 1)
}

// off reports whether a parameter has a disabled feature gate. It may be a reference to a shared parameter, with
// a name and a hash as its key.
func off(name, ref string) bool {
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		return false
	}
	return name == shardSelector || strings.Contains(ref, "/parameters/"+shardSelector+"-")
}

// V2 adapts a document of OpenAPI v2, as a PostProcessSpec function.
func V2(document *spec.Swagger) (*spec.Swagger, error) {
	if document == nil || document.Paths == nil {
		return document, nil
	}
	maps.DeleteFunc(document.Parameters, func(_ string, p spec.Parameter) bool { return off(p.Name, "") })
	for key, p := range document.Parameters {
		p.Description = described(p.Name, p.Description)
		document.Parameters[key] = p
	}
	fit := func(list []spec.Parameter) []spec.Parameter {
		for i := range list {
			list[i].Description = described(list[i].Name, list[i].Description)
		}
		return slices.DeleteFunc(list, func(p spec.Parameter) bool { return off(p.Name, p.Ref.String()) })
	}
	for path, item := range document.Paths.Paths {
		item.Parameters = fit(item.Parameters)
		for _, operation := range []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch} {
			if operation != nil {
				operation.Parameters = fit(operation.Parameters)
			}
		}
		document.Paths.Paths[path] = item
	}
	return document, nil
}

// V3 adapts a document of OpenAPI v3, as a PostProcessSpec function.
func V3(document *spec3.OpenAPI) (*spec3.OpenAPI, error) {
	if document == nil || document.Paths == nil {
		return document, nil
	}
	if document.Components != nil {
		maps.DeleteFunc(document.Components.Parameters, func(_ string, p *spec3.Parameter) bool { return off(p.Name, "") })
		for _, p := range document.Components.Parameters {
			p.Description = described(p.Name, p.Description)
		}
	}
	fit := func(list []*spec3.Parameter) []*spec3.Parameter {
		for _, p := range list {
			p.Description = described(p.Name, p.Description)
		}
		return slices.DeleteFunc(list, func(p *spec3.Parameter) bool { return off(p.Name, p.Ref.String()) })
	}
	for _, item := range document.Paths.Paths {
		item.Parameters = fit(item.Parameters)
		for _, operation := range []*spec3.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch, item.Trace} {
			if operation != nil {
				operation.Parameters = fit(operation.Parameters)
			}
		}
	}
	return document, nil
}
