package merge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const columnDefinitions = "columnDefinitions"

var null = []byte("null")

// isHidden reports whether the object at path prefix is in a logical cluster that merged responses do not include.
func (r *Request) isHidden(raw []byte, prefix ...string) bool {
	if r.Hidden == nil {
		return false
	}
	start, end, ok := find(raw, slices.Concat(prefix, []string{"metadata", "annotations", logicalcluster.AnnotationKey})...)
	return ok && end-start > 1 && r.Hidden(logicalcluster.Name(raw[start+1:end-1]))
}

// withoutObject removes the object from a row if the client has not requested it.
func (r *Request) withoutObject(row []byte) []byte {
	start, end, ok := find(row, "object")
	if !ok || !r.withoutObjects() {
		return row
	}
	return slices.Concat(row[:start], null, row[end:])
}

// mapColumns returns a function that converts the rows of a Table to the columns of another one, by name, because
// shards may have different versions of a schema.
func mapColumns(from, to json.RawMessage) (func(json.RawMessage) (json.RawMessage, error), error) {
	var have, want []metav1.TableColumnDefinition
	if err := json.Unmarshal(from, &have); err != nil {
		return nil, fmt.Errorf("%w: %w", errJSON, err)
	}
	if err := json.Unmarshal(to, &want); err != nil {
		return nil, fmt.Errorf("%w: %w", errJSON, err)
	}
	at := map[string]int{}
	for i, column := range have {
		at[column.Name] = i
	}
	return func(row json.RawMessage) (json.RawMessage, error) {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(row, &members); err != nil {
			return nil, fmt.Errorf("%w: %w", errJSON, err)
		}
		var cells []json.RawMessage
		if err := json.Unmarshal(members["cells"], &cells); err != nil {
			return nil, fmt.Errorf("%w: %w", errJSON, err)
		}
		mapped := make([]json.RawMessage, len(want))
		for i, column := range want {
			mapped[i] = json.RawMessage(`"<unknown>"`)
			if j, ok := at[column.Name]; ok && j < len(cells) {
				mapped[i] = cells[j]
			}
		}
		var err error
		if members["cells"], err = json.Marshal(mapped); err != nil {
			return nil, err
		}
		return json.Marshal(members)
	}, nil
}

// decodeBookmark decodes an object completely, because bookmarks are small. The metadata of a Table are in the row.
func decodeBookmark(raw []byte, tables bool) (object, metadata map[string]any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errJSON, err)
	}
	of := object
	if rows, ok := object["rows"].([]any); ok && tables && isTable(raw) && len(rows) > 0 {
		row, _ := rows[0].(map[string]any)
		of, _ = row["object"].(map[string]any)
	}
	metadata, _ = of["metadata"].(map[string]any)
	return object, metadata, nil
}

// endsInitial reports whether a bookmark ends the initial events.
func endsInitial(raw []byte, tables bool) bool {
	_, metadata, err := decodeBookmark(raw, tables)
	annotations, _ := metadata["annotations"].(map[string]any)
	return err == nil && annotations[metav1.InitialEventsAnnotationKey] == "true"
}

// annotated returns a bookmark with an additional annotation.
func annotated(raw []byte, tables bool, key, value string) ([]byte, error) {
	object, metadata, err := decodeBookmark(raw, tables)
	if err != nil {
		return nil, err
	}
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
