package openapidoc

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/customresource/documents/openapigate"
)

// V2 is the format of /openapi/v2.
func V2() Spec { return Spec{format: v2{}} }

type v2 struct{}

func (v2) name() string { return "v2" }

func (v2) mediaTypes() []string {
	return []string{
		"application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
		"application/com.github.proto-openapi.spec.v2@v1.0+protobuf", // of older clients
	}
}

func (v2) newBase(builtIn []byte, scale bool) (*base, error) {
	var merged spec.Swagger
	if err := json.Unmarshal(builtIn, &merged); err != nil {
		return nil, fmt.Errorf("reading the built-in OpenAPI v2 document: %w", err)
	}
	common, err := buildV2(Definition{CRD: template(scale), Version: "v1"})
	if err != nil {
		return nil, err
	}
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&merged, common); err != nil {
		return nil, fmt.Errorf("merging OpenAPI v2 documents: %w", err)
	}
	maps.DeleteFunc(merged.Paths.Paths, func(path string, _ spec.PathItem) bool { return strings.HasPrefix(path, templateRoot) })
	maps.DeleteFunc(merged.Definitions, func(name string, _ spec.Schema) bool { return strings.HasPrefix(name, templatePrefix) })

	whole, err := merged.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI v2 document: %w", err)
	}
	on := &base{known: &merged}
	if on.protobuf, err = handler.ToProtoBinary(whole); err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI v2 document as protobuf: %w", err)
	}
	on.layout, err = layOut(whole, map[string]int{"paths": inPaths, "definitions": inSchemas, "parameters": inParameters})
	return on, err
}

// buildV2 creates the document of one definition; v2 supports less than structural schemas.
func buildV2(d Definition) (*spec.Swagger, error) {
	built, err := builder.BuildOpenAPIV2(buildable(d.CRD), d.Version, options(true))
	if err != nil {
		return nil, err
	}
	// As in the built-in document, because types in both must be equal.
	built.Definitions = handler.PruneDefaults(built.Definitions)
	if built, err = openapigate.V2(built); err != nil {
		return nil, err
	}
	data, err := built.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	var read spec.Swagger // comparable to other parsed documents
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	if d.CRD.Spec.Group == "" {
		coreV2(&read)
	}
	return &read, nil
}

func (v2) members(on *base, d Definition) (members, error) {
	known, ok := on.known.(*spec.Swagger)
	if !ok {
		return members{}, errNoObject
	}
	built, err := buildV2(d)
	if err != nil {
		return members{}, err
	}
	// Only types with the same names can conflict.
	merged := &spec.Swagger{}
	merged.Paths = &spec.Paths{Paths: common(known.Paths.Paths, built.Paths.Paths)}
	merged.Definitions = common(known.Definitions, built.Definitions)
	for name, s := range merged.Definitions {
		s.Extensions = maps.Clone(s.Extensions) // merging changes them
		merged.Definitions[name] = s
	}
	merged.Parameters = common(known.Parameters, built.Parameters)
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(merged, built); err != nil {
		return members{}, fmt.Errorf("merging: %w", err)
	}
	var added members
	if added[inPaths], err = membersOf(without(merged.Paths.Paths, known.Paths.Paths)); err != nil {
		return members{}, err
	}
	if added[inSchemas], err = membersOf(without(merged.Definitions, known.Definitions)); err != nil {
		return members{}, err
	}
	added[inParameters], err = membersOf(without(merged.Parameters, known.Parameters))
	return added, err
}

func (v2) protobuf(m members) ([]byte, error) {
	document, err := openapi_v2.ParseDocument(fmt.Appendf(nil,
		`{"swagger":"2.0","info":{"title":"part","version":"v1"},"paths":{%s},"definitions":{%s},"parameters":{%s}}`,
		m[inPaths], m[inSchemas], m[inParameters]))
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&openapi_v2.Document{
		Paths: document.GetPaths(), Definitions: document.GetDefinitions(), Parameters: document.GetParameters(),
	})
}
