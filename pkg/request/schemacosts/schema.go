package schemacosts

import (
	"encoding/json"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
)

// Schema is the schema of one version of a custom resource.
type Schema struct {
	root *node
	// perByte is the most instructions of patterns that are run for one byte of an object.
	perByte int
}

// New returns the schema of a version, or nil if it has none.
func New(version *apiextensionsv1.CustomResourceDefinitionVersion) *Schema {
	if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
		return nil
	}
	return &Schema{newNode(version.Schema.OpenAPIV3Schema), perByte(version.Schema.OpenAPIV3Schema)}
}

// node is the schema of one value.
type node struct {
	schema            *apiextensionsv1.JSONSchemaProps
	properties        map[string]*node
	items, additional *node // nil if there is no schema
	// branches are the schemas by which the value is validated as well.
	branches []*node
	keyed    bool
	// pattern is the size of the program of the pattern.
	pattern int
	// validates is what the validation of one value takes, without the values in it: a unit for
	// each property, required property and enum value that it is compared with.
	validates int
	// defaulted are the properties with defaults.
	defaulted map[string]*node
	// filled is the size of the default of the value as JSON, with what defaults add to it; 0 if there is none.
	filled int
	// most is the most that defaults add to one object, or to one null, in this value, if all that is
	// in it is sent with the request.
	most int
	// restricts is set if the schema says more of the value than its type and required properties.
	restricts bool
	// own returns the validator of a value without what is in it, which is made with the first large object.
	own func() (validation.SchemaValidator, error)
	// repeats is set if defaults are added to items of lists or maps in this value.
	repeats bool
}

// bytesPerUnit is how many bytes of an enum take as long as a comparison with a value, because an error contains all of them.
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

// sizeOfDefault returns the size of the value's default, with the defaults in it.
func (n *node) sizeOfDefault() int {
	var value any
	if n.schema.Default == nil || json.Unmarshal(n.schema.Default.Raw, &value) != nil {
		return 0
	}
	var in Amounts
	n.count(value, &in)
	if in.exceeds() { // it was not counted to the end
		return saturated
	}
	return len(n.schema.Default.Raw) + in.Defaults
}

// isKeyed reports whether a list is merged by its entries.
func isKeyed(schema *apiextensionsv1.JSONSchemaProps) bool {
	return schema.XListType != nil && *schema.XListType != "atomic"
}

// entrySize is the size of a field in JSON, with quotes, colon and comma.
func entrySize(name string, value int) int { return len(name) + len(`"":,`) + value }

// alternatives returns the number of schemas in the branches of a value.
func (n *node) alternatives() int {
	sum := 0
	for _, branch := range n.branches {
		sum += branch.nodes()
	}
	return sum
}

// nodes returns the number of schemas in a branch.
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

// Amounts is what an object is multiplied to.
type Amounts struct {
	// Defaults is the size of what defaults add to the object, as JSON.
	Defaults int
	// Keyed is the number of entries in lists that are merged by key.
	Keyed int
	// Validations is the number of comparisons of values with schemas, including those with alternatives.
	Validations int
	// Matches is the number of instructions of patterns, each for each character that is matched.
	Matches int

	// onlyDefaults is set if counting ends for no other limit than that on defaults.
	onlyDefaults bool
}

func (a *Amounts) exceeds() bool {
	if a.onlyDefaults {
		return a.Defaults > maxDefaults
	}
	return a.check(maxKeyedInRequest) != ""
}

// check returns what is above the limits, or "".
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

// count adds the amounts of a value. It ends early if a limit is exceeded.
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

// metadata counts the entries of lists in metadata, which has no schema.
func (a *Amounts) metadata(fields map[string]any) {
	for name, value := range fields {
		if list, ok := value.([]any); ok && name != "managedFields" {
			a.Keyed += len(list)
		}
	}
}

// of returns the amounts of an object, or of a patch that looks like one. They may be too small if they are above the
// limits.
func (s *Schema) of(object map[string]any) (sum Amounts) {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		sum.metadata(metadata)
	}
	s.root.count(object, &sum)
	return sum
}
