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
