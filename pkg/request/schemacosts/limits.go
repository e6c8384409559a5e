package schemacosts

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// Limits on definitions, with the maximum in 141 definitions of eight well-known projects.
const (
	// maxColumns is the maximum number of printer columns (11). A column may contain a field as
	// large as the object.
	//
	//reference:limit object | definition: printer columns of a version | 422
	maxColumns = 32
	// maxUnions and maxDescents are the maximum numbers of commas and ".." in the path of a column
	// (0). Each of them multiplies the results.
	//
	//reference:limit object | definition: commas in the path of a printer column | 422
	//reference:limit object | definition: `..` in the path of a printer column | 422
	maxUnions, maxDescents = 4, 2
	// maxAlternatives is the maximum number of schemas in allOf, anyOf, oneOf and not of a value (8).
	//
	//reference:limit object | definition: schemas in `allOf`, `anyOf`, `oneOf` and `not` of a value | 422
	maxAlternatives = 100
	// maxRequired is the maximum number of required properties of a value (10). Each may cause an error.
	//
	//reference:limit object | definition: required properties of a value | 422
	maxRequired = 1000
	// maxItemDefaults and maxFieldDefaults are the maximum JSON sizes that defaults add to each
	// item of a list or map (96), and to any other object (302).
	//
	//reference:limit object | definition: defaults of an item of a list or map, as JSON | 422
	//reference:limit object | definition: defaults of any other object, as JSON | 422
	maxItemDefaults, maxFieldDefaults = 4 << 10, 64 << 10
)

const (
	// maxDefaults is the maximum JSON size that defaults add to an object. It is the maximum
	// request size. Larger objects do not fit into etcd.
	//
	//reference:limit object | custom resource: all defaults, as JSON | 413; 500 for reads
	maxDefaults = 3 << 20
	// maxKeyed is the maximum number of entries in all lists of type map and set of an object, and
	// in its metadata. Libraries for patches and managed fields compare them with each other: 5,000
	// take up to a second, and 100,000 minutes.
	//
	//reference:limit object | custom resource: entries of lists of type map and set | 413
	maxKeyed = 5000
	// maxKeyedInRequest is the maximum number in a request, before the old object is known.
	//
	//reference:limit request | custom resource: entries of lists of type map and set | 413
	maxKeyedInRequest = 2 * maxKeyed
	// maxValidations is the maximum number of comparisons of values with schemas, of about 1.2 µs each.
	//
	//reference:limit object | custom resource: comparisons of values with schemas in the validation | 413
	maxValidations = 2_000_000
	// maxMatches is the maximum number of characters that are matched, times the instructions of
	// their patterns, of about 10 ns each.
	//
	//reference:limit object | custom resource: characters times instructions of patterns in the validation | 413
	maxMatches = 200_000_000
	// maxProgram is the maximum number of instructions of a pattern that is compiled. Older
	// definitions may contain patterns above patterns.MaxSize.
	//
	//reference:none
	maxProgram = 100_000
)

// saturated is the maximum amount. It prevents overflows.
const saturated = 1 << 40

// weightOf returns the maximum cost of validating a value, in units of a value without alternatives.
func weightOf(schema *apiextensionsv1.JSONSchemaProps) int {
	const perUnit = 16 // properties and enum values are cheaper than required properties
	own := 1 + len(schema.Required) + len(schema.XValidations) + (len(schema.Properties)+len(schema.Enum)+enumBytes(schema))/perUnit
	return most(schema, own, weightOf)
}

// perByte returns the maximum number of instructions of patterns that are executed per byte of a string.
func perByte(schema *apiextensionsv1.JSONSchemaProps) int {
	return min(most(schema, programOf(schema), perByte), saturated)
}

// most returns the maximum of the sum of a schema and its alternatives, and of the schemas in the value.
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

func programOf(schema *apiextensionsv1.JSONSchemaProps) int {
	if schema.Pattern == "" {
		return 0
	}
	if n := patterns.Size(schema.Pattern); n <= maxProgram {
		return n
	}
	return saturated
}

// restricts reports whether a schema has other constraints than type and required properties.
func restricts(s *apiextensionsv1.JSONSchemaProps) bool {
	bounded := s.Maximum != nil || s.Minimum != nil || s.MultipleOf != nil || s.MaxLength != nil || s.MinLength != nil ||
		s.MaxItems != nil || s.MinItems != nil || s.MaxProperties != nil || s.MinProperties != nil
	combined := len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) > 0 || s.Not != nil
	return bounded || combined || s.Pattern != "" || s.Format != "" || len(s.Enum) > 0 || s.UniqueItems
}

func newOwn(schema *apiextensionsv1.JSONSchemaProps) (validation.SchemaValidator, error) {
	own := *schema
	own.Properties, own.Items, own.AdditionalProperties = nil, nil, nil
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&own, &internal, nil); err != nil {
		return nil, fmt.Errorf("converting a schema: %w", err)
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, fmt.Errorf("creating the validator of a schema: %w", err)
	}
	return validator, nil
}

func enumBytes(schema *apiextensionsv1.JSONSchemaProps) int {
	n := 0
	for i := range schema.Enum {
		n += len(schema.Enum[i].Raw)
	}
	return n
}
