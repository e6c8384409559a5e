package openapidoc

import (
	"encoding/json"
	"fmt"
	"strings"

	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/customresource/documents/openapigate"
)

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
	merged := &spec3.OpenAPI{Version: common.Version, Info: common.Info}
	if len(builtIn) > 0 {
		if err := json.Unmarshal(builtIn, merged); err != nil {
			return nil, fmt.Errorf("reading the built-in OpenAPI v3 document: %w", err)
		}
	}
	if merged.Paths == nil {
		merged.Paths = &spec3.Paths{}
	}
	if merged.Paths.Paths == nil {
		merged.Paths.Paths = map[string]*spec3.Path{}
	}
	if merged.Components == nil {
		merged.Components = &spec3.Components{}
	}
	if merged.Components.Schemas == nil {
		merged.Components.Schemas = map[string]*spec.Schema{}
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
	return coreV3(built)
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
	if added[inPaths], err = membersOf(without(built.Paths.Paths, known.Paths.Paths)); err != nil {
		return members{}, err
	}
	added[inSchemas], err = membersOf(without(built.Components.Schemas, known.Components.Schemas))
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
