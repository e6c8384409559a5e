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
	schema  func() *Schema
	weight  func() int
	perByte func() int
}

// NewLazy returns the Lazy of a version, which it keeps.
func NewLazy(version *apiextensionsv1.CustomResourceDefinitionVersion) *Lazy {
	of := func(compute func(*apiextensionsv1.JSONSchemaProps) int) func() int {
		return sync.OnceValue(func() int {
			if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
				return 0
			}
			return compute(version.Schema.OpenAPIV3Schema)
		})
	}
	return &Lazy{
		schema:  sync.OnceValue(func() *Schema { return New(version) }),
		weight:  of(weightOf),
		perByte: of(perByte),
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

// IsLong reports whether an object has such long strings that its amounts have to be computed. Then there is a schema.
func (l *Lazy) IsLong(object map[string]any) bool {
	perByte := l.perByte()
	if perByte == 0 {
		return false
	}
	least := maxMatches/perByte + 1
	return textBytes(object, least) >= least
}

// weightOf returns what the validation of one value takes at most, in units of a value without alternatives.
func weightOf(schema *apiextensionsv1.JSONSchemaProps) int {
	const perUnit = 16 // properties and enum values are compared faster than required properties are missed
	own := 1 + len(schema.Required) + (len(schema.Properties)+len(schema.Enum))/perUnit
	return most(schema, own, weightOf)
}

// perByte returns how many instructions of patterns the validation of one byte of a string runs at most.
func perByte(schema *apiextensionsv1.JSONSchemaProps) int {
	return min(most(schema, programOf(schema), perByte), saturated)
}

// most returns the largest sum of a schema and its alternatives, or of one of the schemas of what is in the value.
func most(schema *apiextensionsv1.JSONSchemaProps, own int, of func(*apiextensionsv1.JSONSchemaProps) int) int {
	inside := 0
	for _, list := range [][]apiextensionsv1.JSONSchemaProps{schema.AllOf, schema.AnyOf, schema.OneOf} {
		for i := range list {
			own += of(&list[i])
		}
	}
	if schema.Not != nil {
		own += of(schema.Not)
	}
	for name := range schema.Properties {
		property := schema.Properties[name]
		inside = max(inside, of(&property))
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		inside = max(inside, of(schema.Items.Schema))
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		inside = max(inside, of(schema.AdditionalProperties.Schema))
	}
	return max(own, inside)
}
