// Package openapigate takes out of OpenAPI documents the parameters of list and
// watch requests whose feature gate is off. Upstream makes the documents from
// Go types, which know no gates, so that clients would be offered what the
// server ignores.
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

// gated are the parameters and their gates.
var gated = map[string]featuregate.Feature{
	"shardSelector": features.ShardedListAndWatch,
}

// off returns the parameters not to offer.
func off() []string {
	var names []string
	for name, gate := range gated {
		if !utilfeature.DefaultFeatureGate.Enabled(gate) {
			names = append(names, name)
		}
	}
	return names
}

// V2 changes a document of OpenAPI v2 and returns it, as a PostProcessSpec does.
func V2(document *spec.Swagger) (*spec.Swagger, error) {
	names := off()
	if len(names) == 0 || document == nil {
		return document, nil
	}
	maps.DeleteFunc(document.Parameters, func(key string, p spec.Parameter) bool { return slices.Contains(names, p.Name) })
	drop := func(list []spec.Parameter) []spec.Parameter {
		return slices.DeleteFunc(list, func(p spec.Parameter) bool {
			return slices.Contains(names, p.Name) || refersTo(p.Ref.String(), names)
		})
	}
	if document.Paths == nil {
		return document, nil
	}
	for path, item := range document.Paths.Paths {
		item.Parameters = drop(item.Parameters)
		for _, operation := range []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch} {
			if operation != nil {
				operation.Parameters = drop(operation.Parameters)
			}
		}
		document.Paths.Paths[path] = item
	}
	return document, nil
}

// V3 changes a document of OpenAPI v3 and returns it, as a PostProcessSpec does.
func V3(document *spec3.OpenAPI) (*spec3.OpenAPI, error) {
	names := off()
	if len(names) == 0 || document == nil || document.Paths == nil {
		return document, nil
	}
	if document.Components != nil {
		maps.DeleteFunc(document.Components.Parameters, func(key string, p *spec3.Parameter) bool { return slices.Contains(names, p.Name) })
	}
	drop := func(list []*spec3.Parameter) []*spec3.Parameter {
		return slices.DeleteFunc(list, func(p *spec3.Parameter) bool {
			return slices.Contains(names, p.Name) || refersTo(p.Ref.String(), names)
		})
	}
	for _, item := range document.Paths.Paths {
		item.Parameters = drop(item.Parameters)
		for _, operation := range []*spec3.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch, item.Trace} {
			if operation != nil {
				operation.Parameters = drop(operation.Parameters)
			}
		}
	}
	return document, nil
}

// refersTo reports whether ref points to one of the parameters among the shared
// ones, whose keys are a name and a hash.
func refersTo(ref string, names []string) bool {
	key := ref[strings.LastIndexByte(ref, '/')+1:]
	name, _, hashed := strings.Cut(key, "-")
	return hashed && strings.Contains(ref, "/parameters/") && slices.Contains(names, name)
}
