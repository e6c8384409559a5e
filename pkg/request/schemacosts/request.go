package schemacosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// MinBytes is the size of bodies below which no object is above the limits, if its definition is within them. JSON patches can be
// smaller, because they may copy what is there.
const MinBytes = 4 << 10

// MayCopy reports whether a JSON patch may have operations that copy or move what is there.
func MayCopy(patch []byte) bool {
	return bytes.Contains(patch, []byte("copy")) || bytes.Contains(patch, []byte("move")) || bytes.ContainsRune(patch, '\\')
}

// Body returns an error if the object or patch in a request is above the limits. A body that cannot be decoded is
// not: the server rejects it without effort.
func (s *Schema) Body(body []byte, mediaType string) error {
	var object map[string]any
	switch mediaType {
	case string(types.JSONPatchType):
		return s.jsonPatch(body)
	case runtime.ContentTypeCBOR, string(types.ApplyCBORPatchType):
		if cbor.Unmarshal(body, &object) != nil {
			return nil //nolint:nilerr // the server rejects it
		}
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		if yaml.Unmarshal(body, &object) != nil {
			return nil //nolint:nilerr // the server rejects it
		}
	default: // objects and merge patches in JSON
		if !s.mayExceed(body) || utiljson.Unmarshal(body, &object) != nil {
			return nil //nolint:nilerr // the server rejects it
		}
	}
	return toError(s.of(object), maxKeyedInRequest)
}

// mayExceed reports whether JSON has so many objects, lists, nulls and bytes that it must be decoded.
func (s *Schema) mayExceed(body []byte) bool {
	if s.perByte*len(body) > maxMatches {
		return true
	}
	containers := bytes.Count(body, []byte("{")) + bytes.Count(body, []byte("[")) + bytes.Count(body, []byte("null"))
	return containers*s.root.most > maxDefaults || containers+bytes.Count(body, []byte(",")) > maxKeyedInRequest
}

func toError(amounts Amounts, mostKeyed int) error {
	if above := amounts.check(mostKeyed); above != "" {
		return errors.New(above)
	}
	return nil
}

// jsonPatch returns an error if the values of a JSON patch are above the limits.
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
			// Nobody knows how much is there.
			if json.Unmarshal(operation["from"], &from) == nil && at != nil && at.repeats && s.at(from) != at {
				return errors.New("a JSON patch must not " + op + " the value of another field to " + strconv.Quote(path) + ", because the schema has defaults for its items: use the operation add")
			}
		}
	}
	return toError(sum, maxKeyedInRequest)
}

// add adds the amounts of a value at a path.
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

// at returns the schema of the value at the path of a JSON patch, or nil if it has none.
func (s *Schema) at(path string) *node {
	at := s.root
	if path == "" {
		return at
	}
	_, path, _ = strings.Cut(path, "/") // what is before is ignored
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

// Stored returns an error if defaults add too much to an object when it is read.
func (s *Schema) Stored(object map[string]any) error {
	sum := Amounts{onlyDefaults: true}
	if s.root.most > 0 {
		s.root.count(object, &sum)
	}
	return toError(Amounts{Defaults: sum.Defaults}, maxKeyed)
}

// Object returns an error if an object is above the limits before it is validated. An object that had as many
// entries of keyed lists before may keep them; old is nil for a new object.
func (s *Schema) Object(object, old map[string]any) error {
	now, mostKeyed := s.of(object), maxKeyed
	now.Defaults = 0 // they have been added
	if now.Keyed > maxKeyed && old != nil {
		before := s.of(old)
		mostKeyed = max(maxKeyed, before.Keyed)
	}
	return toError(now, mostKeyed)
}

// textBytes returns the number of bytes of all strings in a document, and at least most if there are more.
func textBytes(document any, most int) int {
	n := 0
	switch document := document.(type) {
	case map[string]any:
		for _, value := range document {
			if n += textBytes(value, most-n); n >= most {
				return n
			}
		}
	case []any:
		for _, value := range document {
			if n += textBytes(value, most-n); n >= most {
				return n
			}
		}
	case string:
		return max(1, len(document))
	default:
	}
	return n
}

// values returns the number of values in a document, and at least most if there are more.
func values(document any, most int) int {
	n := 1
	switch document := document.(type) {
	case map[string]any:
		for _, value := range document {
			if n += values(value, most-n); n >= most {
				return n
			}
		}
	case []any:
		for _, value := range document {
			if n += values(value, most-n); n >= most {
				return n
			}
		}
	default:
	}
	return n
}
