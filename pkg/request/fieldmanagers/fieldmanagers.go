// Package fieldmanagers counts the entries of metadata.managedFields that a request to write
// brings along. It counts too many where it is cheaper than to count right, and never too few:
// what it refuses, no decoder behind it may find less of.
package fieldmanagers

import (
	"bytes"
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

const (
	// leastEntry is less than the bytes of an entry in any encoding: at least its manager, its
	// operation and the type of its fields.
	leastEntry = 16
	// unbounded is the number of entries that a patch takes from where they are not looked for.
	unbounded = 1 << 30

	metadata, managedFields = "metadata", "managedFields"
)

// protobufPrefix is what bodies in protobuf begin with.
var protobufPrefix = []byte{'k', '8', 's', 0}

// Exceed reports whether a body with a media type brings more than most entries along. What
// cannot be decoded has none: nobody else decodes it either.
func Exceed(body []byte, mediaType string, most int) bool {
	switch types.PatchType(mediaType) {
	case types.JSONPatchType: // which may copy entries that it does not have
		return ofPatch(body) > most
	case types.ApplyYAMLPatchType, types.ApplyCBORPatchType: // which may have none
		return false
	default:
		return len(body) > most*leastEntry && ofObject(body, mediaType) > most
	}
}

// ofObject counts the entries of an object, or of a patch that looks like one.
func ofObject(body []byte, mediaType string) int {
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		var sent metav1.PartialObjectMetadata
		var unknown runtime.Unknown
		if unknown.Unmarshal(bytes.TrimPrefix(body, protobufPrefix)) != nil || sent.Unmarshal(unknown.Raw) != nil {
			return 0
		}
		return len(sent.ManagedFields)
	case runtime.ContentTypeCBOR:
		var decoded map[string]any // no key is there twice
		if cbor.Unmarshal(body, &decoded) != nil {
			return 0
		}
		found, _, _ := unstructured.NestedFieldNoCopy(decoded, metadata, managedFields) // nothing if it is not there
		all, _ := found.([]any)
		return len(all)
	case runtime.ContentTypeYAML:
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return 0
		}
	default: // JSON, also where nothing is said
	}
	if !bytes.Contains(body, []byte(managedFields)) && !bytes.ContainsRune(body, '\\') {
		return 0
	}
	var counted object
	if json.Unmarshal(body, &counted) != nil {
		return 0
	}
	return int(counted.Metadata)
}

// object counts in all that an object has under metadata: where a key is there twice, one decoder
// takes the last value, and another one both together.
type object struct {
	Metadata entries `json:"metadata"`
}

// entries counts the entries of all metadata that it is given.
type entries int

// UnmarshalJSON implements json.Unmarshaler.
func (e *entries) UnmarshalJSON(data []byte) error {
	var m struct {
		ManagedFields list `json:"managedFields"`
	}
	if json.Unmarshal(data, &m) == nil { // else it is no metadata
		*e += entries(m.ManagedFields)
	}
	return nil
}

// list counts the elements of all lists that it is given.
type list int

// UnmarshalJSON implements json.Unmarshaler.
func (l *list) UnmarshalJSON(data []byte) error {
	var elements []json.RawMessage
	if json.Unmarshal(data, &elements) == nil { // else it is no list of entries
		*l += list(len(elements))
	}
	return nil
}

// ofPatch counts the entries that a JSON patch brings along.
func ofPatch(body []byte) int {
	var operations []map[string]json.RawMessage // the library knows keys by the same rules
	if json.Unmarshal(body, &operations) != nil {
		return 0
	}
	sum := 0
	for _, operation := range operations {
		sum += ofOperation(operation)
	}
	return sum
}

func ofOperation(operation map[string]json.RawMessage) int {
	var op, path string
	if json.Unmarshal(operation["op"], &op) != nil || json.Unmarshal(operation["path"], &path) != nil {
		return 0
	}
	_, path, _ = strings.Cut(path, "/") // what is before is nothing to the library
	value := operation["value"]
	within := strings.HasPrefix(path, metadata+"/"+managedFields+"/")
	var e entries
	switch {
	case op == "remove", op == "test":
		return 0
	case within: // an entry, or a part of one
		return 1
	case path != "" && path != metadata && path != metadata+"/"+managedFields:
		return 0
	case op != "add" && op != "replace":
		return unbounded
	case path == metadata:
		_ = e.UnmarshalJSON(value)
	case path != "":
		var l list
		_ = l.UnmarshalJSON(value)
		return int(l)
	default:
		var whole object
		_ = json.Unmarshal(value, &whole) // else it is no object
		e = whole.Metadata
	}
	return int(e)
}
