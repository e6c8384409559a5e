package versions

import (
	"math"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// shape is a summary of a schema that decides whether upstream's codec would change a value, i.e. prune,
// repair or default it. Objects were written through the codec and almost never change, and this check costs a
// tenth of decoding. It returns false if it is unsure.
type shape struct {
	properties        map[string]*shape
	additional, items *shape // nil if there is no schema
	// defaulted are the properties with defaults.
	defaulted []string
	// defaultBytes is the memory of the default of this schema, including nested defaults; 0 without a default.
	defaultBytes int64
	nullable     bool
	// preservesAll is set if unknown fields are preserved and no field has a schema.
	preservesAll bool
	// opaque is set if only the codec can decide.
	opaque bool
}

// shapesOf returns the shapes of all versions that have a schema, by name. Objects of the others always need the codec.
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
		s.preservesAll = s.properties == nil && s.additional == nil && s.items == nil
		s.opaque = s.opaque || !s.preservesAll
	}
	if schema.Default != nil {
		var value any
		if err := utiljson.Unmarshal(schema.Default.Raw, &value); err == nil {
			s.defaultBytes = add(bytesOf(value), s.expansion(value))
		}
	}
	return s
}

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

// isNormal reports whether the codec would not change a value.
func (s *shape) isNormal(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return s.hasNormalFields(value, false)
	case []any:
		if s == nil || s.opaque || s.preservesAll {
			return s != nil && !s.opaque
		}
		for _, item := range value {
			if !s.items.isNormal(item) {
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

// hasNormalFields is isNormal for an object. The root has fields that are not in its schema.
func (s *shape) hasNormalFields(fields map[string]any, root bool) bool {
	if s == nil || s.opaque || s.preservesAll {
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
		if property == nil || !property.isNormal(value) {
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

// isNormalObject is isNormal for an object that is already in the requested version.
func (s *shape) isNormalObject(object map[string]any) bool {
	metadata, _ := object["metadata"].(map[string]any)
	return s.hasNormalFields(object, true) && isPlainMetadata(metadata)
}

// expansion returns how many bytes of memory the defaults of a schema add to a value. It follows the
// defaulting of structural schemas in k8s.io/apiextensions-apiserver.
func (s *shape) expansion(value any) (sum int64) {
	if s == nil {
		return 0
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range s.defaulted {
			if set, found := value[name]; !found || s.properties[name].replaces(set) {
				sum = add(sum, s.properties[name].defaultBytes)
			}
		}
		for name, field := range value {
			property := s.properties[name]
			if property == nil {
				property = s.additional
				if property.replaces(field) {
					sum = add(sum, property.defaultBytes)
				}
			}
			sum = add(sum, property.expansion(field))
		}
	case []any:
		for _, item := range value {
			if s.items.replaces(item) {
				sum = add(sum, s.items.defaultBytes)
			}
			sum = add(sum, s.items.expansion(item))
		}
	default:
	}
	return sum
}

// replaces reports whether a value is an invalid null, which is replaced by the default.
func (s *shape) replaces(value any) bool { return s != nil && value == nil && !s.nullable }

// add returns the sum of two non-negative numbers, or math.MaxInt64 if it overflows.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// isPlainMetadata reports whether metadata would not change if it was decoded to a metav1.ObjectMeta and
// encoded again, as upstream's codec does with every object.
func isPlainMetadata(metadata map[string]any) bool {
	return metadata["creationTimestamp"] != nil && plainMetadata.accept(metadata)
}

// fieldChecks are the allowed fields of an object, each with a function that reports whether a value is allowed.
type fieldChecks map[string]func(value any) bool

func (c fieldChecks) accept(value any) bool {
	fields, ok := value.(map[string]any)
	for name, field := range fields {
		check := c[name]
		ok = ok && check != nil && check(field)
	}
	return ok
}

var (
	plainMetadata = fieldChecks{
		"name": isText, "generateName": isText, "namespace": isText, "selfLink": isText, "uid": isText, "resourceVersion": isText,
		"generation":                 func(value any) bool { return is[int64](value) && value != int64(0) },
		"deletionGracePeriodSeconds": is[int64],
		"creationTimestamp":          isTime,
		"deletionTimestamp":          isTime,
		"labels":                     areStrings,
		"annotations":                areStrings,
		"finalizers":                 listOf(is[string]),
		"ownerReferences":            listOf(isPlainOwner),
		"managedFields":              listOf(plainManager.accept),
	}
	plainOwner = fieldChecks{
		"apiVersion": is[string], "kind": is[string], "name": is[string], "uid": is[string],
		"controller": is[bool], "blockOwnerDeletion": is[bool],
	}
	plainManager = fieldChecks{
		"manager": isText, "operation": isText, "apiVersion": isText, "fieldsType": isText, "subresource": isText,
		"time": isTime, "fieldsV1": areFields,
	}
)

func isPlainOwner(value any) bool {
	owner, _ := value.(map[string]any)
	for _, required := range []string{"apiVersion", "kind", "name", "uid"} {
		if owner[required] == nil {
			return false
		}
	}
	return plainOwner.accept(owner)
}

func areStrings(value any) bool {
	texts, _ := value.(map[string]any)
	for _, text := range texts {
		if !is[string](text) {
			return false
		}
	}
	return len(texts) > 0
}

func areFields(value any) bool {
	fields, ok := value.(map[string]any)
	for _, below := range fields {
		ok = ok && areFields(below)
	}
	return ok
}

// listOf returns a function that reports whether a value is a list of at least one valid item.
func listOf(isItem func(any) bool) func(any) bool {
	return func(value any) bool {
		items, _ := value.([]any)
		return len(items) > 0 && !slices.ContainsFunc(items, func(item any) bool { return !isItem(item) })
	}
}

func is[T any](value any) bool {
	_, ok := value.(T)
	return ok
}

func isText(value any) bool { return is[string](value) && value != "" }

// isTime reports whether a value is a non-zero time in the format of metav1.Time.
func isTime(value any) bool {
	text, ok := value.(string)
	if !ok || len(text) != len("2006-01-02T15:04:05Z") {
		return false
	}
	at, err := time.Parse(time.RFC3339, text)
	return err == nil && !at.IsZero() && at.UTC().Format(time.RFC3339) == text
}
