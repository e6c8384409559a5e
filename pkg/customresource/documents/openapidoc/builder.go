package openapidoc

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/customresource/documents/openapigate"
)

const (
	templateGroup  = "template.invalid"
	templatePrefix = "invalid.template."
	templateRoot   = "/apis/" + templateGroup + "/"
)

// template is a definition that references every type that definitions reference.
func template(scale bool) *apiextensionsv1.CustomResourceDefinition {
	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v1", Served: true, Storage: true,
		Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
	}
	if scale {
		version.Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
			SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "templates." + templateGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    templateGroup,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "templates", Singular: "template", Kind: "Template", ListKind: "TemplateList"},
			Scope:    apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
		},
	}
}

func options(v2 bool) builder.Options {
	return builder.Options{
		V2:                      v2,
		IncludeSelectableFields: utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors),
	}
}

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

// reread encodes and decodes a document, so that it is comparable to other parsed ones, and removes the replaced group.
// schemas is the path to its schemas.
func reread[T any](built *T, d Definition, schemas ...string) (*T, error) {
	data, err := json.Marshal(built)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	if d.CRD.Spec.Group == "" {
		if data, err = withoutCoreGroup(data, schemas...); err != nil {
			return nil, err
		}
	}
	read := new(T)
	if err := json.Unmarshal(data, read); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	return read, nil
}

// withoutCoreGroup removes the replaced group from the paths of an encoded document, and from the extensions with kinds
// of its operations and schemas. schemas is the path to these.
func withoutCoreGroup(data []byte, schemas ...string) ([]byte, error) {
	var document map[string]any
	if err := utiljson.Unmarshal(data, &document); err != nil { // preserves large integers
		return nil, fmt.Errorf("decoding: %w", err)
	}
	ungroup := func(of any) {
		fields, _ := of.(map[string]any)
		kinds := []any{fields[kindExtension]}
		if several, ok := kinds[0].([]any); ok {
			kinds = several
		}
		for _, kind := range kinds {
			if kind, ok := kind.(map[string]any); ok && kind["group"] == coreGroup {
				kind["group"] = ""
			}
		}
	}
	built, _ := document["paths"].(map[string]any)
	paths := make(map[string]any, len(built))
	for path, item := range built {
		operations, _ := item.(map[string]any)
		for _, operation := range operations {
			ungroup(operation)
		}
		if rest, ok := strings.CutPrefix(path, "/apis/"+coreGroup+"/"); ok {
			path = "/api/" + rest
		}
		paths[path] = item
	}
	document["paths"] = paths
	all, _, _ := unstructured.NestedFieldNoCopy(document, schemas...)
	models, _ := all.(map[string]any)
	for _, s := range models {
		ungroup(s)
	}
	return json.Marshal(document)
}

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
	return reread(built, d, "definitions")
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
	if added[inPaths], err = membersOf(merged.Paths.Paths, known.Paths.Paths); err != nil {
		return members{}, err
	}
	if added[inSchemas], err = membersOf(merged.Definitions, known.Definitions); err != nil {
		return members{}, err
	}
	added[inParameters], err = membersOf(merged.Parameters, known.Parameters)
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

// V3 is the format of the documents below /openapi/v3.
func V3() Spec { return Spec{format: v3{}} }

type v3 struct{}

func (v3) name() string { return "v3" }

func (v3) mediaTypes() []string {
	return []string{
		"application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
		"application/com.github.proto-openapi.spec.v3@v1.0+protobuf", // of older clients
	}
}

// Without a built-in document, the base is everything in a definition's document except the definition.
func (v3) newBase(builtIn []byte, scale bool) (*base, error) {
	common, err := buildV3(Definition{CRD: template(scale), Version: "v1"})
	if err != nil {
		return nil, err
	}
	merged := &spec3.OpenAPI{
		Version: common.Version, Info: common.Info, Paths: &spec3.Paths{Paths: map[string]*spec3.Path{}},
		Components: &spec3.Components{Schemas: map[string]*spec.Schema{}},
	}
	if len(builtIn) > 0 {
		if err := json.Unmarshal(builtIn, merged); err != nil {
			return nil, fmt.Errorf("reading the built-in OpenAPI v3 document: %w", err)
		}
	}
	for name, s := range common.Components.Schemas {
		if _, ok := merged.Components.Schemas[name]; !ok && !strings.HasPrefix(name, templatePrefix) {
			merged.Components.Schemas[name] = s
		}
	}
	whole, err := json.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI v3 document: %w", err)
	}
	on := &base{known: merged}
	if on.protobuf, err = handler3.ToV3ProtoBinary(whole); err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI v3 document as protobuf: %w", err)
	}
	on.layout, err = layOut(whole, map[string]int{"paths": inPaths, "components/schemas": inSchemas})
	return on, err
}

func buildV3(d Definition) (*spec3.OpenAPI, error) {
	built, err := builder.BuildOpenAPIV3(buildable(d.CRD), d.Version, options(false))
	if err != nil {
		return nil, err
	}
	if built, err = openapigate.V3(built); err != nil || d.CRD.Spec.Group != "" {
		return built, err
	}
	return reread(built, d, "components", "schemas")
}

// Types that the base contains are not changed.
func (v3) members(on *base, d Definition) (members, error) {
	known, ok := on.known.(*spec3.OpenAPI)
	if !ok {
		return members{}, errNoObject
	}
	built, err := buildV3(d)
	if err != nil {
		return members{}, err
	}
	var added members
	if added[inPaths], err = membersOf(built.Paths.Paths, known.Paths.Paths); err != nil {
		return members{}, err
	}
	added[inSchemas], err = membersOf(built.Components.Schemas, known.Components.Schemas)
	return added, err
}

func (v3) protobuf(m members) ([]byte, error) {
	document, err := openapi_v3.ParseDocument(fmt.Appendf(nil,
		`{"openapi":"3.0.0","info":{"title":"part","version":"v1"},"paths":{%s},"components":{"schemas":{%s}}}`, m[inPaths], m[inSchemas]))
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&openapi_v3.Document{Paths: document.GetPaths(), Components: document.GetComponents()})
}
