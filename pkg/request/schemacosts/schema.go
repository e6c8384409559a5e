// Package schemacosts computes the cost of an object according to the schema of its custom resource: added defaults,
// validations, and entries of keyed lists. The API server multiplies these with the number of items, keeps the
// result in memory, and ignores the request deadline.
//
//	definition ── CheckSpec ──► errors that name the field
//	           └─ New ──► Schema ── Body ──► a request body, before it is decoded
//	                             ├─ Object, Errors ──► an object, before it is validated
//	                             └─ Stored ──► an object, before it is read
package schemacosts

import (
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// Limits on definitions, with the maximum in 141 definitions of eight well-known projects.
const (
	// maxVersions limits versions (6), which upstream compares with each other: 50,000 take seconds.
	//
	//reference:limit object | definition: versions | 422
	maxVersions = 100
	// maxColumns limits printer columns (11), each of which may contain a field as large as the object.
	//
	//reference:limit object | definition: printer columns of a version | 422
	maxColumns = 32
	// maxUnions limits commas in the path of a column (0), which multiply the results. Recursive descents (0) are
	// invalid, because two of them take 13 s for an object with 1,000 levels.
	//
	//reference:limit object | definition: commas in the path of a printer column | 422
	//reference:limit object =0 | definition: `..` in the path of a printer column | 422
	maxUnions = 4
	// maxAlternatives is the maximum number of schemas in allOf, anyOf, oneOf and not of a value (8).
	//
	//reference:limit object | definition: schemas in `allOf`, `anyOf`, `oneOf` and `not` of a value | 422
	maxAlternatives = 100
	// maxRequired is the maximum number of required properties of a value (10). Each may cause an error.
	//
	//reference:limit object | definition: required properties of a value | 422
	maxRequired = 1000
	// maxItemDefaults and maxFieldDefaults are the maximum JSON sizes that defaults add to an item of a list or map
	// (96), and to any other object (302).
	//
	//reference:limit object | definition: defaults of an item of a list or map, as JSON | 422
	//reference:limit object | definition: defaults of any other object, as JSON | 422
	maxItemDefaults, maxFieldDefaults = 4 << 10, 64 << 10
	// maxDefaultMatches limits the validation of defaults, in units of maxMatches.
	//
	//reference:limit object | definition: characters of defaults times instructions of their patterns | 422
	maxDefaultMatches = 50_000_000
	// maxUnexplained is the maximum length of a rule without message: upstream copies the rule for each violation.
	//
	//reference:limit object | definition: bytes of a rule in `x-kubernetes-validations` without `message` | 422
	maxUnexplained = 1 << 10
)

const (
	// maxDefaults is the maximum JSON size that defaults add to an object: the maximum request size.
	//
	//reference:limit object | custom resource: all defaults, as JSON | 413; 500 for reads
	maxDefaults = 3 << 20
	// maxKeyed is the maximum number of entries in all lists of type map and set of an object, and in its metadata.
	// Libraries compare them with each other: 5,000 take up to a second, and 100,000 minutes.
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
	// maxMatches limits the matched characters times instructions of their patterns, of about 10 ns each.
	//
	//reference:limit object | custom resource: characters times instructions of patterns in the validation | 413
	maxMatches = 200_000_000
	// perValidation is the cost of a comparison with a schema in units of maxMatches.
	perValidation = 120
	// maxProgram is the maximum number of instructions of a pattern that is compiled, for older definitions.
	//
	//reference:none
	maxProgram = 100_000
)

// saturated is the maximum amount. It prevents overflows.
const saturated = 1 << 40

// Schema is the schema of a version of a custom resource.
type Schema struct {
	root *node
	// perByte is the maximum number of instructions of patterns that are executed per byte of an object.
	perByte int
}

// NewSchemaCosts returns the schema of a version, or nil if it has none.
func NewSchemaCosts(version *apiextensionsv1.CustomResourceDefinitionVersion) *Schema {
	if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
		return nil
	}
	return &Schema{newNode(version.Schema.OpenAPIV3Schema), perByte(version.Schema.OpenAPIV3Schema)}
}

type node struct {
	schema            *apiextensionsv1.JSONSchemaProps
	properties        map[string]*node
	items, additional *node // may be nil
	branches          []*node
	keyed             bool
	pattern           int
	// validates is the cost of validating the value itself: one for each property, required property and enum value.
	validates int
	defaulted map[string]*node
	// filled is the JSON size of the default of the value, including nested defaults, or 0, and filling the cost of
	// validating it.
	filled  int
	filling Amounts
	most    int
	// restricts is set if the schema has other constraints than type and required properties.
	restricts bool
	// own returns the validator of the value without the values in it. It is created on demand.
	own func() (validation.SchemaValidator, error)
	// repeats is set if defaults are added to items of lists or maps in this value.
	repeats bool
}

// bytesPerUnit is how many bytes of an enum cost as much as a comparison, because they are part of each error.
const bytesPerUnit = 8

func newNode(schema *apiextensionsv1.JSONSchemaProps) *node {
	n := &node{
		schema: schema, keyed: schema.XListType != nil && *schema.XListType != "atomic", validates: 1 + len(schema.Properties) + len(schema.Required) + len(schema.Enum) + enumBytes(schema)/bytesPerUnit,
		restricts: restricts(schema),
		own:       sync.OnceValues(func() (validation.SchemaValidator, error) { return newOwn(schema) }),
	}
	n.pattern = programOf(schema)
	if len(schema.Properties) > 0 {
		n.properties = make(map[string]*node, len(schema.Properties))
	}
	for name := range schema.Properties {
		property := schema.Properties[name]
		child := newNode(&property)
		n.properties[name] = child
		n.most, n.repeats = max(n.most, child.most), n.repeats || child.repeats
		if child.filled > 0 {
			if n.defaulted == nil {
				n.defaulted = map[string]*node{}
			}
			n.defaulted[name] = child
		}
	}
	if more := schema.AdditionalProperties; more != nil && more.Schema != nil {
		n.additional = newNode(more.Schema)
		n.most, n.repeats = max(n.most, n.additional.most), n.repeats || n.additional.most > 0
	}
	if items := schema.Items; items != nil && items.Schema != nil {
		n.items = newNode(items.Schema)
		n.most, n.repeats = max(n.most, n.items.most), n.repeats || n.items.most > 0
	}
	branches, _ := branchesOf(schema, nil)
	for _, branch := range branches {
		n.branches = append(n.branches, newNode(branch))
	}
	n.filled = n.sizeOfDefault()
	n.most = max(n.most, n.added(), n.filled)
	return n
}

func (n *node) sizeOfDefault() int {
	var value any
	if n.schema.Default == nil || json.Unmarshal(n.schema.Default.Raw, &value) != nil {
		return 0
	}
	n.count(value, &n.filling)
	if n.filling.exceeds() { // counting has ended early
		return saturated
	}
	return len(n.schema.Default.Raw) + n.filling.Defaults
}

// added returns the size that defaults of properties add to the value.
func (n *node) added() int {
	sum := 0
	for name, property := range n.defaulted {
		sum = min(sum+entrySize(name, property.filled), saturated)
	}
	return sum
}

func entrySize(name string, value int) int { return len(name) + len(`"":,`) + value }

func (n *node) alternatives() int {
	sum := 0
	for _, branch := range n.branches {
		sum += branch.nodes()
	}
	return sum
}

func (n *node) nodes() int {
	sum := 1 + n.alternatives()
	for _, property := range n.properties {
		sum += property.nodes()
	}
	if n.items != nil {
		sum += n.items.nodes()
	}
	if n.additional != nil {
		sum += n.additional.nodes()
	}
	return sum
}

// Amounts are the costs of an object.
type Amounts struct {
	// Defaults is the JSON size that defaults add.
	Defaults int
	// Keyed is the number of entries in lists that are merged by key.
	Keyed int
	// Validations is the number of comparisons of values with schemas, including alternatives.
	Validations int
	// Matches is the number of characters that are matched, times the instructions of their patterns.
	Matches int

	// onlyDefaults is set if counting may end early only because of Defaults.
	onlyDefaults bool
}

func (a Amounts) exceeds() bool {
	if a.onlyDefaults {
		return a.Defaults > maxDefaults
	}
	return a.check(maxKeyedInRequest) != nil
}

func (a Amounts) check(mostKeyed int) error {
	switch {
	case a.Defaults > maxDefaults:
		return fmt.Errorf("the defaults in the schema add more than %d bytes to the object: use fewer items or smaller defaults", maxDefaults)
	case a.Keyed > mostKeyed:
		return fmt.Errorf("the lists of type map and set, and those in metadata, have more than %d entries, at most %d allowed in one object: distribute them over several objects", mostKeyed, maxKeyed)
	case a.Validations > maxValidations:
		return fmt.Errorf("the validation of the object takes more than %d comparisons of values with schemas: use fewer values, or fewer alternatives (anyOf, oneOf, allOf) in the schema", maxValidations)
	case a.Matches > maxMatches:
		return fmt.Errorf("the validation of the object runs more than %d instructions of regular expressions: use fewer or shorter strings, maxLength, or smaller patterns in the schema", maxMatches)
	default:
		return nil
	}
}

// fill adds the default of a value, which is validated like other values.
func (a *Amounts) fill(n *node, size int) {
	a.Defaults += size
	a.Validations += n.filling.Validations
	a.Matches = min(a.Matches+n.filling.Matches, saturated)
}

func (n *node) count(value any, sum *Amounts) {
	sum.Validations += n.validates
	if sum.exceeds() {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		n.countFields(value, sum)
	case []any:
		if n.keyed {
			sum.Keyed += len(value)
		}
		if n.items == nil {
			break
		}
		for _, item := range value {
			if item == nil {
				sum.fill(n.items, n.items.filled)
			}
			n.items.count(item, sum)
		}
	case string:
		sum.Matches += n.pattern * max(1, len(value))
	default:
	}
	for _, branch := range n.branches {
		branch.count(value, sum)
	}
}

func (n *node) countFields(fields map[string]any, sum *Amounts) {
	for name, property := range n.defaulted {
		if fields[name] == nil {
			sum.fill(property, entrySize(name, property.filled))
		}
	}
	for name, value := range fields {
		switch property := n.properties[name]; {
		case property != nil:
			property.count(value, sum)
		case n.additional != nil:
			if value == nil {
				sum.fill(n.additional, n.additional.filled)
			}
			n.additional.count(value, sum)
		}
	}
}

// metadata counts the list entries in metadata, which has no schema.
func (a *Amounts) metadata(fields map[string]any) {
	for name, value := range fields {
		if list, ok := value.([]any); ok && name != "managedFields" {
			a.Keyed += len(list)
		}
	}
}

// of returns the amounts of an object, or of a merge patch. Amounts above a limit may be too small.
func (s *Schema) of(object map[string]any) (sum Amounts) {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		sum.metadata(metadata)
	}
	s.root.count(object, &sum)
	return sum
}

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
	branches, _ := branchesOf(schema, nil)
	for _, branch := range branches {
		own += of(branch)
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

// branchesOf returns the schemas in allOf, anyOf, oneOf and not of the schema at a path, and their paths.
func branchesOf(schema *apiextensionsv1.JSONSchemaProps, path *field.Path) (branches []*apiextensionsv1.JSONSchemaProps, paths []*field.Path) {
	add := func(name string, list []apiextensionsv1.JSONSchemaProps) {
		for i := range list {
			branches, paths = append(branches, &list[i]), append(paths, path.Child(name).Index(i))
		}
	}
	add("allOf", schema.AllOf)
	add("anyOf", schema.AnyOf)
	add("oneOf", schema.OneOf)
	if schema.Not != nil {
		branches, paths = append(branches, schema.Not), append(paths, path.Child("not"))
	}
	return branches, paths
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
