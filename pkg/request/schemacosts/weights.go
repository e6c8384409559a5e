package schemacosts

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// saturated is the largest amount, so that sums and products of amounts cannot overflow.
const saturated = 1 << 40

// weightOf returns what the validation of one value takes at most, in units of a value without alternatives.
func weightOf(schema *apiextensionsv1.JSONSchemaProps) int {
	const perUnit = 16 // properties and enum values are compared faster than required properties are missed
	own := 1 + len(schema.Required) + len(schema.XValidations) + (len(schema.Properties)+len(schema.Enum)+enumBytes(schema))/perUnit
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

// programOf returns the size of the program of a schema's pattern.
func programOf(schema *apiextensionsv1.JSONSchemaProps) int {
	if schema.Pattern == "" {
		return 0
	}
	if n := patterns.Size(schema.Pattern); n <= maxProgram {
		return n
	}
	return saturated
}

// restricts reports whether a schema says more of a value than its type and its required properties.
func restricts(s *apiextensionsv1.JSONSchemaProps) bool {
	bounded := s.Maximum != nil || s.Minimum != nil || s.MultipleOf != nil || s.MaxLength != nil || s.MinLength != nil ||
		s.MaxItems != nil || s.MinItems != nil || s.MaxProperties != nil || s.MinProperties != nil
	combined := len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) > 0 || s.Not != nil
	return bounded || combined || s.Pattern != "" || s.Format != "" || len(s.Enum) > 0 || s.UniqueItems
}

// newOwn returns the validator of a value without what is in it.
func newOwn(schema *apiextensionsv1.JSONSchemaProps) (validation.SchemaValidator, error) {
	own := *schema
	own.Properties, own.Items, own.AdditionalProperties = nil, nil, nil
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&own, &internal, nil); err != nil {
		return nil, fmt.Errorf("converting a schema: %w", err)
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, fmt.Errorf("making the validator of a schema: %w", err)
	}
	return validator, nil
}

// enumBytes returns the size of the values of an enum, all of which are in each error about it.
func enumBytes(schema *apiextensionsv1.JSONSchemaProps) int {
	n := 0
	for i := range schema.Enum {
		n += len(schema.Enum[i].Raw)
	}
	return n
}
