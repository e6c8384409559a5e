// Package openapigate adapts the parameters of list and watch requests in OpenAPI documents. It removes
// parameters with a disabled feature gate, and documents extensions, because upstream generates the
// documents from Go types.
package openapigate

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var gated = map[string]featuregate.Feature{
	shardSelector: features.ShardedListAndWatch,
}

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

// off returns the parameters with a disabled feature gate.
func off() []string {
	var names []string
	for name, gate := range gated {
		if !utilfeature.DefaultFeatureGate.Enabled(gate) {
			names = append(names, name)
		}
	}
	return names
}

// V2 adapts a document of OpenAPI v2, as a PostProcessSpec function.
func V2(document *spec.Swagger) (*spec.Swagger, error) {
	if document == nil || document.Paths == nil {
		return document, nil
	}
	names := off()
	maps.DeleteFunc(document.Parameters, func(key string, p spec.Parameter) bool { return slices.Contains(names, p.Name) })
	for key, p := range document.Parameters {
		p.Description = described(p.Name, p.Description)
		document.Parameters[key] = p
	}
	fit := func(list []spec.Parameter) []spec.Parameter {
		for i := range list {
			list[i].Description = described(list[i].Name, list[i].Description)
		}
		return slices.DeleteFunc(list, func(p spec.Parameter) bool {
			return slices.Contains(names, p.Name) || refersTo(p.Ref.String(), names)
		})
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
	names := off()
	if document.Components != nil {
		maps.DeleteFunc(document.Components.Parameters, func(key string, p *spec3.Parameter) bool { return slices.Contains(names, p.Name) })
		for _, p := range document.Components.Parameters {
			p.Description = described(p.Name, p.Description)
		}
	}
	fit := func(list []*spec3.Parameter) []*spec3.Parameter {
		for _, p := range list {
			p.Description = described(p.Name, p.Description)
		}
		return slices.DeleteFunc(list, func(p *spec3.Parameter) bool {
			return slices.Contains(names, p.Name) || refersTo(p.Ref.String(), names)
		})
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

// refersTo reports whether ref points to one of the shared parameters, which have a name and a hash as key.
func refersTo(ref string, names []string) bool {
	key := ref[strings.LastIndexByte(ref, '/')+1:]
	name, _, hashed := strings.Cut(key, "-")
	return hashed && strings.Contains(ref, "/parameters/") && slices.Contains(names, name)
}
