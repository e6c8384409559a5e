package merge

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const columnDefinitions = "columnDefinitions"

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
