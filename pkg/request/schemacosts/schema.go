// Package schemacosts computes the cost of an object according to the schema of its custom
// resource: the size of added defaults, the number of validations, and the entries of keyed lists.
// The API server multiplies these with the number of items, ignores the request deadline meanwhile,
// and keeps the result in memory. Definitions and objects above the limits are rejected before.
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

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
)

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
	// validates is the cost of validating the value without the values in it: one for each property,
	// required property and enum value.
	validates int
	defaulted map[string]*node
	// filled is the JSON size of the default of the value, including nested defaults, or 0.
	filled int
	most   int
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
		schema: schema, keyed: isKeyed(schema), validates: 1 + len(schema.Properties) + len(schema.Required) + len(schema.Enum) + enumBytes(schema)/bytesPerUnit,
		restricts: restricts(schema),
		own:       sync.OnceValues(func() (validation.SchemaValidator, error) { return newOwn(schema) }),
	}
	n.pattern = programOf(schema)
	if len(schema.Properties) > 0 {
		n.properties = make(map[string]*node, len(schema.Properties))
	}
	own := 0
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
			own = min(own+entrySize(name, child.filled), saturated)
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
	for _, list := range [][]apiextensionsv1.JSONSchemaProps{schema.AllOf, schema.AnyOf, schema.OneOf} {
		for i := range list {
			n.branches = append(n.branches, newNode(&list[i]))
		}
	}
	if schema.Not != nil {
		n.branches = append(n.branches, newNode(schema.Not))
	}
	n.filled = n.sizeOfDefault()
	n.most = max(n.most, own, n.filled)
	return n
}

// sizeOfDefault returns the size of the default, including nested defaults.
func (n *node) sizeOfDefault() int {
	var value any
	if n.schema.Default == nil || json.Unmarshal(n.schema.Default.Raw, &value) != nil {
		return 0
	}
	var in Amounts
	n.count(value, &in)
	if in.exceeds() { // counting has ended early
		return saturated
	}
	return len(n.schema.Default.Raw) + in.Defaults
}

func isKeyed(schema *apiextensionsv1.JSONSchemaProps) bool {
	return schema.XListType != nil && *schema.XListType != "atomic"
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

func (a *Amounts) exceeds() bool {
	if a.onlyDefaults {
		return a.Defaults > maxDefaults
	}
	return a.check(maxKeyedInRequest) != ""
}

func (a *Amounts) check(mostKeyed int) string {
	switch {
	case a.Defaults > maxDefaults:
		return fmt.Sprintf("the defaults in the schema add more than %d bytes to the object: use fewer items or smaller defaults", maxDefaults)
	case a.Keyed > mostKeyed:
		return fmt.Sprintf("the lists of type map and set, and those in metadata, have more than %d entries, at most %d allowed in one object: distribute them over several objects", mostKeyed, maxKeyed)
	case a.Validations > maxValidations:
		return fmt.Sprintf("the validation of the object takes more than %d comparisons of values with schemas: use fewer values, or fewer alternatives (anyOf, oneOf, allOf) in the schema", maxValidations)
	case a.Matches > maxMatches:
		return fmt.Sprintf("the validation of the object runs more than %d instructions of regular expressions: use fewer or shorter strings, maxLength, or smaller patterns in the schema", maxMatches)
	default:
		return ""
	}
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
				sum.Defaults += n.items.filled
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
			sum.Defaults += entrySize(name, property.filled)
		}
	}
	for name, value := range fields {
		switch property := n.properties[name]; {
		case property != nil:
			property.count(value, sum)
		case n.additional != nil:
			if value == nil {
				sum.Defaults += n.additional.filled
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
