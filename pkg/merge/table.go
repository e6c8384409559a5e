package merge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
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

// mapColumns returns a function that converts the rows of a Table to the columns of another Table, by the names
// of the columns. Shards may have different versions of a schema.
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

var errClient = errors.New("the client does not read the response")

// eventWriter writes the events of a watch.
type eventWriter struct {
	request *Request
	w       http.ResponseWriter
	out     *bufio.Writer
	// columns are the columns that the client has received. hidden are the columns of hidden events by shard, which
	// the client has not received.
	columns []byte
	hidden  map[uint32][]byte
}

// visible returns the object of an event, or nil if it is hidden. A shard sends the columns of a Table only with its
// first event, so the columns of a hidden event are sent with the next one.
func (w *eventWriter) visible(shard uint32, raw []byte) []byte {
	if !w.request.Tables || !isTable(raw) {
		if w.request.isHidden(raw) {
			return nil
		}
		return raw
	}
	rows, hidden := 0, 0
	if at, _, ok := find(raw, "rows"); ok {
		elements(raw, at, func(start, end int) {
			rows++
			if w.request.isHidden(raw[start:end], "object") {
				hidden++
			}
		})
	}
	start, end, ok := find(raw, columnDefinitions)
	none := !ok || bytes.Equal(raw[start:end], null)
	switch {
	case rows > 0 && rows == hidden: // events have one row
		if !none {
			w.hidden[shard] = bytes.Clone(raw[start:end])
		}
		return nil
	case ok && none && w.hidden[shard] != nil:
		raw = slices.Concat(raw[:start], w.hidden[shard], raw[end:])
	}
	delete(w.hidden, shard)
	return raw
}

// withoutRowObjects removes the objects from the rows of a Table if the client has not requested them.
func (w *eventWriter) withoutRowObjects(raw []byte) []byte {
	at, _, ok := find(raw, "rows")
	if !ok || !w.request.withoutObjects() {
		return raw
	}
	out, last := []byte(nil), 0
	elements(raw, at, func(start, end int) {
		out = append(append(out, raw[last:start]...), w.request.withoutObject(raw[start:end])...)
		last = end
	})
	return append(out, raw[last:]...)
}

// write sends an object with a version.
func (w *eventWriter) write(event watch.EventType, raw []byte, version Vector) error {
	if !w.request.Tables || !isTable(raw) {
		return w.frame(event, splice(raw, versionIn(raw), version.String()))
	}
	raw = splice(raw, tableVersionsIn(raw), version.String())
	if start, end, ok := find(raw, columnDefinitions); ok {
		// Each shard sends its columns first; the client needs them once.
		switch columns := raw[start:end]; {
		case w.columns == nil:
			w.columns = bytes.Clone(columns)
		case bytes.Equal(w.columns, columns):
			raw = slices.Concat(raw[:start], null, raw[end:])
		}
	}
	return w.frame(event, w.withoutRowObjects(raw))
}

// frame sends an event.
func (w *eventWriter) frame(event watch.EventType, raw []byte) error {
	_, _ = w.out.WriteString(`{"type":"` + string(event) + `","object":`)
	_, _ = w.out.Write(raw)
	_, _ = w.out.WriteString("}\n")
	return w.flush()
}

func (w *eventWriter) flush() error {
	if errors.Join(w.out.Flush(), http.NewResponseController(w.w).Flush()) != nil {
		return errClient
	}
	return nil
}
