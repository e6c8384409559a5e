package schemacosts

import (
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// minValues is the number of values from which on objects are examined before they are validated. It is smaller for
// schemas by which one value has many errors.
const minValues = 1000

// Lazy makes the Schema of a version when it is needed: small objects need none.
type Lazy struct {
	schema func() *Schema
	weight func() int
}

// NewLazy returns the Lazy of a version, which it keeps.
func NewLazy(version *apiextensionsv1.CustomResourceDefinitionVersion) *Lazy {
	return &Lazy{
		schema: sync.OnceValue(func() *Schema { return New(version) }),
		weight: sync.OnceValue(func() int {
			if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
				return 0
			}
			return weightOf(version.Schema.OpenAPIV3Schema)
		}),
	}
}

// Schema returns the schema of the version, or nil if it has none.
func (l *Lazy) Schema() *Schema { return l.schema() }

// IsLarge reports whether an object has so many values that its amounts have to be computed. Then there is a schema.
func (l *Lazy) IsLarge(object map[string]any) bool {
	weight := l.weight()
	if weight == 0 {
		return false // there is no schema
	}
	least := max(1, minValues/weight)
	return values(object, least) >= least
}

// weightOf returns what the validation of one value takes at most, in units of a value without alternatives.
func weightOf(schema *apiextensionsv1.JSONSchemaProps) int {
	const perUnit = 16 // properties and enum values are compared faster than required properties are missed
	own, most := 1+len(schema.Required)+(len(schema.Properties)+len(schema.Enum))/perUnit, 0
	for _, list := range [][]apiextensionsv1.JSONSchemaProps{schema.AllOf, schema.AnyOf, schema.OneOf} {
		for i := range list {
			own += weightOf(&list[i])
		}
	}
	if schema.Not != nil {
		own += weightOf(schema.Not)
	}
	for name := range schema.Properties {
		property := schema.Properties[name]
		most = max(most, weightOf(&property))
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		most = max(most, weightOf(schema.Items.Schema))
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		most = max(most, weightOf(schema.AdditionalProperties.Schema))
	}
	return max(own, most)
}
