// Package fieldmanagers counts the entries of metadata.managedFields in write requests. The result may be too high,
// but is never less than the number that any decoder would find.
package fieldmanagers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

const (
	// leastEntry is less than the minimum size of an entry with manager, operation and type in any encoding.
	leastEntry = 16
	unbounded  = 1 << 30

	metadata, managedFields = "metadata", "managedFields"
)

var protobufPrefix = []byte{'k', '8', 's', 0}

// Exceed reports whether a body has more than most entries. Bodies that cannot be decoded have none.
func Exceed(body []byte, mediaType string, most int) bool {
	switch types.PatchType(mediaType) {
	case types.JSONPatchType: // it may copy entries
		return ofPatch(body) > most
	case types.ApplyYAMLPatchType: // entries are not allowed
		return false
	default:
		return len(body) > most*leastEntry && ofObject(body, mediaType) > most
	}
}

func ofObject(body []byte, mediaType string) int {
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		var sent metav1.PartialObjectMetadata
		var unknown runtime.Unknown
		if unknown.Unmarshal(bytes.TrimPrefix(body, protobufPrefix)) != nil || sent.Unmarshal(unknown.Raw) != nil {
			return 0
		}
		return len(sent.ManagedFields)
	case runtime.ContentTypeYAML:
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return 0
		}
	default: // JSON, also if there is no media type
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

// object sums up the entries of all fields named metadata, because decoders treat duplicates differently.
type object struct {
	Metadata entries `json:"metadata"`
}

type entries int

func (e *entries) UnmarshalJSON(data []byte) error {
	var m struct {
		ManagedFields list `json:"managedFields"`
	}
	if json.Unmarshal(data, &m) == nil { // otherwise it is invalid
		*e += entries(m.ManagedFields)
	}
	return nil
}

type list int

func (l *list) UnmarshalJSON(data []byte) error {
	var elements []json.RawMessage
	if json.Unmarshal(data, &elements) == nil { // otherwise it is invalid
		*l += list(len(elements))
	}
	return nil
}

func ofPatch(body []byte) int {
	var operations []map[string]json.RawMessage // the library compares keys in the same way
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
	_, path, _ = strings.Cut(path, "/") // the library ignores the text before it
	whole := "%s"
	switch {
	case op == "remove", op == "test":
		return 0
	case strings.HasPrefix(path, metadata+"/"+managedFields+"/"): // an entry, or a part of it
		return 1
	case path == metadata+"/"+managedFields:
		whole = `{"metadata":{"managedFields":%s}}`
	case path == metadata:
		whole = `{"metadata":%s}`
	case path != "":
		return 0
	default:
	}
	if op != "add" && op != "replace" {
		return unbounded
	}
	var counted object
	_ = json.Unmarshal(fmt.Appendf(nil, whole, operation["value"]), &counted) // otherwise it is invalid
	return int(counted.Metadata)
}

// KeepOrder restores the order of the field managers of an object if they differ only in timestamps. The generic
// registry ignores such updates, but compares managers by position, and they are sorted by timestamps. Two managers
// that write in turn without changes would otherwise cause updates.
func KeepOrder(updated, before metav1.Object) {
	managers, former := updated.GetManagedFields(), before.GetManagedFields()
	if len(managers) != len(former) {
		return
	}
	withoutFields := func(entry metav1.ManagedFieldsEntry) metav1.ManagedFieldsEntry {
		entry.Time, entry.FieldsV1 = nil, nil
		return entry
	}
	byManager := make(map[metav1.ManagedFieldsEntry]metav1.ManagedFieldsEntry, len(managers))
	for _, entry := range managers {
		byManager[withoutFields(entry)] = entry
	}
	ordered := make([]metav1.ManagedFieldsEntry, 0, len(former))
	for _, old := range former {
		entry, ok := byManager[withoutFields(old)]
		if !ok || !equality.Semantic.DeepEqual(entry.FieldsV1, old.FieldsV1) {
			return
		}
		ordered = append(ordered, entry)
	}
	updated.SetManagedFields(ordered)
}
