package versions

import (
	"math"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// shape is what of a schema decides whether upstream's codec leaves a value as it is:
// whether it has fields to drop, to repair, or to set to their defaults. Objects are
// nearly always as the codec would leave them, since they were written through it, and
// to see that takes a tenth of what it takes to decode them. In doubt the codec decides.
type shape struct {
	properties        map[string]*shape
	additional, items *shape // nil where there is no schema
	// defaulted are the properties that have defaults.
	defaulted []string
	// fills is what a value takes in memory that is set to the default of this schema, the defaults
	// within it included; 0 without a default.
	fills    int64
	nullable bool
	// anything is set where all is kept that has no schema, and nothing has one.
	anything bool
	// opaque is set where the codec has to be asked.
	opaque bool
}

// shapesOf returns the shapes of all versions that have a schema, by name. Of the others the codec always has to be
// asked.
func shapesOf(spec *apiextensionsv1.CustomResourceDefinitionSpec) map[string]*shape {
	all := make(map[string]*shape, len(spec.Versions))
	for i := range spec.Versions {
		v := &spec.Versions[i]
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		s := newShape(v.Schema.OpenAPIV3Schema)
		if s.properties["metadata"].hasDefaults() {
			s.opaque = true
		}
		all[v.Name] = s
	}
	return all
}

func newShape(schema *apiextensionsv1.JSONSchemaProps) *shape {
	s := &shape{opaque: schema.XEmbeddedResource || schema.Ref != nil, nullable: schema.Nullable}
	if len(schema.Properties) > 0 {
		s.properties = make(map[string]*shape, len(schema.Properties))
	}
	for name := range schema.Properties {
		property := schema.Properties[name]
		s.properties[name] = newShape(&property)
		if property.Default != nil {
			s.defaulted = append(s.defaulted, name)
		}
	}
	if more := schema.AdditionalProperties; more != nil {
		if more.Schema == nil {
			s.opaque = true
		} else {
			s.additional = newShape(more.Schema)
		}
	}
	if items := schema.Items; items != nil {
		if items.Schema == nil {
			s.opaque = true
		} else {
			s.items = newShape(items.Schema)
		}
	}
	if keeps := schema.XPreserveUnknownFields; keeps != nil && *keeps {
		s.anything = s.properties == nil && s.additional == nil && s.items == nil
		s.opaque = s.opaque || !s.anything
	}
	if schema.Default != nil {
		var value any
		if err := utiljson.Unmarshal(schema.Default.Raw, &value); err == nil {
			s.fills = add(bytesOf(value), s.expansion(value))
		}
	}
	return s
}

// hasDefaults reports whether anything in a shape has a default.
func (s *shape) hasDefaults() bool {
	if s == nil {
		return false
	}
	if len(s.defaulted) > 0 || s.additional.hasDefaults() || s.items.hasDefaults() {
		return true
	}
	for _, property := range s.properties {
		if property.hasDefaults() {
			return true
		}
	}
	return false
}

// leaves reports whether the codec would leave a value as it is.
func (s *shape) leaves(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return s.leavesFields(value, false)
	case []any:
		if s == nil || s.opaque || s.anything {
			return s != nil && !s.opaque
		}
		for _, item := range value {
			if !s.items.leaves(item) {
				return false
			}
		}
		return true
	case nil:
		return false
	default:
		return true
	}
}

// leavesFields is leaves for an object. The root has fields that are not in its schema.
func (s *shape) leavesFields(fields map[string]any, root bool) bool {
	if s == nil || s.opaque || s.anything {
		return s != nil && !s.opaque
	}
	for name, value := range fields {
		if root && (name == "metadata" || name == "apiVersion" || name == "kind") {
			continue
		}
		property := s.properties[name]
		if property == nil {
			property = s.additional
		}
		if property == nil || !property.leaves(value) {
			return false
		}
	}
	for _, name := range s.defaulted {
		if _, ok := fields[name]; !ok {
			return false
		}
	}
	return true
}

// leavesObject is leaves for a whole object, of a version and kind as they are read.
func (s *shape) leavesObject(object map[string]any) bool {
	metadata, _ := object["metadata"].(map[string]any)
	return s.leavesFields(object, true) && isPlainMetadata(metadata)
}

// expansion returns how many bytes of memory the defaults of a schema add to a value. It follows
// the defaulting of structural schemas in k8s.io/apiextensions-apiserver.
func (s *shape) expansion(value any) (sum int64) {
	if s == nil {
		return 0
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range s.defaulted {
			if set, found := value[name]; !found || s.properties[name].replaces(set) {
				sum = add(sum, s.properties[name].fills)
			}
		}
		for name, field := range value {
			property := s.properties[name]
			if property == nil {
				property = s.additional
				if property.replaces(field) {
					sum = add(sum, property.fills)
				}
			}
			sum = add(sum, property.expansion(field))
		}
	case []any:
		for _, item := range value {
			if s.items.replaces(item) {
				sum = add(sum, s.items.fills)
			}
			sum = add(sum, s.items.expansion(item))
		}
	default:
	}
	return sum
}

// replaces reports whether a value is null where null is not allowed, so that it is set to the default.
func (s *shape) replaces(value any) bool { return s != nil && value == nil && !s.nullable }

// add is the sum of two numbers that are not negative, or the largest one.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
