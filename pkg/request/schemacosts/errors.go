package schemacosts

import (
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxErrors is how many validation errors are reported at most. Upstream's validation compares each
// error with all others, so that 30,000 take 9 s.
const MaxErrors = 100

// maxRatcheted is how many errors an update may have that the object had before. These are not reported, but
// compared all the same.
const maxRatcheted = 2000

// Errors returns the first MaxErrors validation errors of a large object if there are more, and otherwise nothing, because
// then it can be validated as a whole. Errors that an object had before it is changed are no reason to reject it, if they
// are not too many. only is the field that is written, e.g. "status", and except is a field that is not; both can be "".
func (s *Schema) Errors(object, old map[string]any, only, except string) (field.ErrorList, error) {
	most := MaxErrors
	if old != nil {
		had, err := s.errors(old, only, except, MaxErrors)
		if err != nil {
			return nil, err
		}
		if len(had) > MaxErrors {
			most = maxRatcheted
		}
	}
	errs, err := s.errors(object, only, except, most)
	if err != nil || len(errs) <= most {
		return nil, err
	}
	return errs[:MaxErrors], nil
}

// errors returns the validation errors of an object, up to one more than most.
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

// validators validate values one by one, so that they can stop.
type validators struct {
	most int
	errs field.ErrorList
	err  error
}

// done reports whether there are enough errors.
func (v *validators) done() bool { return v.err != nil || len(v.errs) > v.most }

// validate validates a value and all that is in it.
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

// own validates a value without what is in it.
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

// isPlain reports whether a value is obviously valid, as nearly all are, without regard to what is in it. The validator
// decides otherwise.
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
