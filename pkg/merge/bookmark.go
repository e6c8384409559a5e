package merge

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metadataOf returns the metadata of a bookmark. In a Table it is in the row.
func metadataOf(object map[string]any, table bool) map[string]any {
	if rows, ok := object["rows"].([]any); ok && table && len(rows) > 0 {
		row, _ := rows[0].(map[string]any)
		object, _ = row["object"].(map[string]any)
	}
	metadata, _ := object["metadata"].(map[string]any)
	return metadata
}

// decodeBookmark decodes an object completely, because bookmarks are small.
func decodeBookmark(raw []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, fmt.Errorf("%w: %w", errJSON, err)
	}
	return object, nil
}

// endsInitial reports whether a bookmark ends the initial events.
func endsInitial(raw []byte, tables bool) bool {
	object, err := decodeBookmark(raw)
	if err != nil {
		return false
	}
	annotations, _ := metadataOf(object, tables && isTable(raw))["annotations"].(map[string]any)
	return annotations[metav1.InitialEventsAnnotationKey] == "true"
}

// annotated returns a bookmark with an additional annotation.
func annotated(raw []byte, tables bool, key, value string) ([]byte, error) {
	object, err := decodeBookmark(raw)
	if err != nil {
		return nil, err
	}
	metadata := metadataOf(object, tables && isTable(raw))
	if metadata == nil {
		return raw, nil // a Table without objects
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}
	annotations[key] = value
	return json.Marshal(object)
}
