package schemacosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// MinBytes is the size of bodies below which no object can exceed the limits. JSON patches may copy fields.
const MinBytes = 4 << 10

// MayCopy reports whether a JSON patch may copy or move fields.
func MayCopy(patch []byte) bool {
	return bytes.Contains(patch, []byte("copy")) || bytes.Contains(patch, []byte("move")) || bytes.ContainsRune(patch, '\\')
}

// Body returns an error if the object or patch in a request exceeds the limits. Invalid bodies are ignored.
func (s *Schema) Body(body []byte, mediaType string) error {
	var object map[string]any
	switch mediaType {
	case string(types.JSONPatchType):
		return s.jsonPatch(body)
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		if json.Valid(body) { // most clients apply JSON, which is cheaper to examine
			return s.Body(body, runtime.ContentTypeJSON)
		}
		if yaml.Unmarshal(body, &object) != nil {
			return nil //nolint:nilerr // the server rejects it
		}
	default: // objects and merge patches in JSON
		if !s.mayExceed(body) || utiljson.Unmarshal(body, &object) != nil {
			return nil //nolint:nilerr // the server rejects it
		}
	}
	return s.of(object).check(maxKeyedInRequest)
}

// mayExceed reports whether JSON must be decoded because of the number of objects, lists, nulls and bytes.
func (s *Schema) mayExceed(body []byte) bool {
	if s.perByte*len(body) > maxMatches {
		return true
	}
	containers := bytes.Count(body, []byte("{")) + bytes.Count(body, []byte("[")) + bytes.Count(body, []byte("null"))
	return containers*s.root.most > maxDefaults || containers+bytes.Count(body, []byte(",")) > maxKeyedInRequest
}

func (s *Schema) jsonPatch(body []byte) error {
	var operations []map[string]json.RawMessage // keys are compared exactly, as in the library that applies the patch
	if json.Unmarshal(body, &operations) != nil {
		return nil //nolint:nilerr // the server rejects it
	}
	var sum Amounts
	for _, operation := range operations {
		var op, path, from string
		if json.Unmarshal(operation["op"], &op) != nil || json.Unmarshal(operation["path"], &path) != nil {
			return nil //nolint:nilerr // the server rejects it
		}
		at := s.at(path)
		switch op {
		case "add", "replace":
			var value any
			if utiljson.Unmarshal(operation["value"], &value) == nil {
				sum.add(at, path, value)
			}
		case "copy", "move":
			// The size of the value is unknown.
			if json.Unmarshal(operation["from"], &from) == nil && at != nil && at.repeats && s.at(from) != at {
				return errors.New("a JSON patch must not " + op + " the value of another field to " + strconv.Quote(path) + ", because the schema has defaults for its items: use the operation add")
			}
		}
	}
	return sum.check(maxKeyedInRequest)
}

func (a *Amounts) add(at *node, path string, value any) {
	switch list, isList := value.([]any); {
	case at != nil:
		at.count(value, a)
	case isList && strings.HasPrefix(path, "/metadata/"):
		a.Keyed += len(list)
	}
	if fields, ok := value.(map[string]any); ok && path == "" {
		if metadata, ok := fields["metadata"].(map[string]any); ok {
			a.metadata(metadata)
		}
	}
}

func (s *Schema) at(path string) *node {
	at := s.root
	if path == "" {
		return at
	}
	_, path, _ = strings.Cut(path, "/") // the text before it is ignored
	for segment := range strings.SplitSeq(path, "/") {
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(segment)
		switch next := at.properties[name]; {
		case next != nil:
			at = next
		case at.items != nil:
			at = at.items
		case at.additional != nil:
			at = at.additional
		default:
			return nil
		}
	}
	return at
}

// Stored returns an error if defaults would add too much to an object when it is read.
func (s *Schema) Stored(object map[string]any) error {
	sum := Amounts{onlyDefaults: true}
	if s.root.most > 0 {
		s.root.count(object, &sum)
	}
	return Amounts{Defaults: sum.Defaults}.check(maxKeyed)
}

// Object returns an error if an object exceeds the limits before validation. It may have as many entries in keyed
// lists as old, which may be nil.
func (s *Schema) Object(object, old map[string]any) error {
	now, mostKeyed := s.of(object), maxKeyed
	now.Defaults = 0 // they have already been added
	if now.Keyed > maxKeyed && old != nil {
		before := s.of(old)
		mostKeyed = max(maxKeyed, before.Keyed)
	}
	return now.check(mostKeyed)
}

// sumOf returns the sum of the amounts of a document and all values in it. It stops at most.
func sumOf(document any, most int, amount func(value any) int) int {
	n := amount(document)
	switch document := document.(type) {
	case map[string]any:
		for _, value := range document {
			if n += sumOf(value, most-n, amount); n >= most {
				return n
			}
		}
	case []any:
		for _, value := range document {
			if n += sumOf(value, most-n, amount); n >= most {
				return n
			}
		}
	default:
	}
	return n
}

// minValues is the number of values from which objects are checked, divided by the weight of the schema.
const minValues = 1000

// Lazy creates the Schema of a version on demand, because small objects do not need it.
type Lazy struct {
	schema  func() *Schema
	weights func() (weight, perByte int) // 0 without a schema
}

// NewLazy returns the Lazy of a version. It retains the version.
func NewLazy(version *apiextensionsv1.CustomResourceDefinitionVersion) *Lazy {
	return &Lazy{
		schema: sync.OnceValue(func() *Schema { return NewSchemaCosts(version) }),
		weights: sync.OnceValues(func() (int, int) {
			if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
				return 0, 0
			}
			return weightOf(version.Schema.OpenAPIV3Schema), perByte(version.Schema.OpenAPIV3Schema)
		}),
	}
}

// Schema returns the schema of the version, or nil.
func (l *Lazy) Schema() *Schema { return l.schema() }

// IsLarge reports whether an object has enough values to exceed limits. If so, there is a schema.
func (l *Lazy) IsLarge(object map[string]any) bool {
	weight, _ := l.weights()
	if weight == 0 {
		return false
	}
	least := max(1, minValues/weight)
	return sumOf(object, least, func(any) int { return 1 }) >= least
}

// IsLong reports whether an object has enough text to exceed limits. If so, there is a schema.
func (l *Lazy) IsLong(object map[string]any) bool {
	_, perByte := l.weights()
	if perByte == 0 {
		return false
	}
	least := maxMatches/perByte + 1
	return sumOf(object, least, func(value any) int {
		if text, ok := value.(string); ok {
			return max(1, len(text))
		}
		return 0
	}) >= least
}

// MaxErrors limits reported validation errors. Upstream compares them with each other: 30,000 take 9 s.
//
//reference:none
const MaxErrors = 100

// maxRatcheted is the maximum number of errors in an update if the old object also had more than MaxErrors.
//
//reference:limit object | custom resource: validation errors, if it had more than 100 before | 422
const maxRatcheted = 2000

// Errors returns validation errors of a large object. many reports whether there are too many errors to validate the
// object as a whole, which also finds errors in other fields and ignores errors that old had. only is the field that
// is written, e.g. "status", and except one that is not. Both may be empty.
func (s *Schema) Errors(object, old map[string]any, only, except string) (errs field.ErrorList, many bool, err error) {
	most := MaxErrors
	if old != nil {
		had, err := s.errors(old, only, except, MaxErrors)
		if err != nil {
			return nil, false, err
		}
		if len(had) > MaxErrors {
			most = maxRatcheted
		}
	}
	errs, err = s.errors(object, only, except, most)
	return errs, len(errs) > most, err
}

func (s *Schema) errors(object map[string]any, only, except string, most int) (field.ErrorList, error) {
	v := validators{most: most}
	if only != "" {
		if property := s.root.properties[only]; property != nil {
			v.validate(property, field.NewPath(only), object[only])
		}
		return v.errs, v.err
	}
	v.own(s.root, nil, object)
	for name, value := range object {
		if property := s.root.properties[name]; property != nil && name != except {
			v.validate(property, field.NewPath(name), value)
		}
	}
	return v.errs, v.err
}

type validators struct {
	most int
	errs field.ErrorList
	err  error
}

func (v *validators) done() bool { return v.err != nil || len(v.errs) > v.most }

func (v *validators) validate(n *node, path *field.Path, value any) {
	if v.done() {
		return
	}
	v.own(n, path, value)
	switch value := value.(type) {
	case map[string]any:
		for name, value := range value {
			if property := n.properties[name]; property != nil {
				v.validate(property, path.Child(name), value)
			} else if n.additional != nil {
				v.validate(n.additional, path.Key(name), value)
			}
		}
	case []any:
		for i := 0; n.items != nil && i < len(value) && !v.done(); i++ {
			v.validate(n.items, path.Index(i), value[i])
		}
	default:
	}
}

func (v *validators) own(n *node, path *field.Path, value any) {
	if n.isPlain(value) {
		return
	}
	validator, err := n.own()
	if err != nil {
		v.err = err
		return
	}
	v.errs = append(v.errs, validation.ValidateCustomResource(path, value, validator)...)
}

// isPlain reports whether a value, without the values in it, is obviously valid, like most values.
func (n *node) isPlain(value any) bool {
	if n.restricts {
		return false
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range n.schema.Required {
			if _, ok := value[name]; !ok {
				return false
			}
		}
		return n.schema.Type == "object"
	case []any:
		return n.schema.Type == "array"
	case string:
		return n.schema.Type == "string" || n.schema.XIntOrString
	case int64:
		return n.schema.Type == "integer" || n.schema.Type == "number" || n.schema.XIntOrString
	case float64:
		return n.schema.Type == "number"
	case bool:
		return n.schema.Type == "boolean"
	default:
		return false
	}
}
