// Package patchcosts limits the cost of writes in libraries that ignore the request deadline. These libraries
// compare the entries of lists with each other, or copy a list for each operation. The limits need neither object
// nor schema.
package patchcosts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/request/values"
)

const (
	// maxShifts is the maximum number of operations of a JSON patch that insert or remove list elements. Each
	// copies the list. 1,000 take 3 s for a list of 500,000 elements, the longest that can be stored.
	//
	//reference:limit request | patch: operations of a JSON patch that insert or remove list elements, without `/-` | 413
	maxShifts = 1000
	// maxMerged limits the list entries in a strategic merge patch, which are compared with all entries of the
	// object.
	//
	//reference:limit request | patch: entries of all lists of a strategic merge patch | 413
	maxMerged = 1000
	// MaxKeyed is the maximum number of entries in all lists of a built-in object that are merged by key. A
	// strategic merge patch compares them with each other: 1,000 take 0.1 s, 10,000 take 10 s.
	//
	//reference:limit object | built-in kinds: entries of all lists that are merged by key | 413
	MaxKeyed = 1000
	// MaxFields is the maximum number of entries of a map. Changed fields are inserted into a sorted list in random
	// order, and each insertion moves half of the list: 50,000 fields take 0.7 s, 200,000 take 11 s.
	//
	//reference:limit object | all objects: entries of a map, e.g. labels | 413
	MaxFields = 50_000
)

// keyed are the lists of built-in resources that are merged by key.
var keyed = sets.New("conditions", "finalizers", "imagePullSecrets", "matchConditions", "ownerReferences", "secrets", "validationActions", "variables", "webhooks", "x-kubernetes-validations")

// Check returns an error if a body exceeds the limits.
func Check(body []byte, mediaType string) error {
	switch types.PatchType(mediaType) {
	case types.JSONPatchType:
		return CheckShifts(shifts(body))
	case types.StrategicMergePatchType:
		if n := entries(body); n > maxMerged {
			return fmt.Errorf("the lists of the patch have %d entries, at most %d allowed in a strategic merge patch: update the object, or send several patches", n, maxMerged)
		}
	default:
	}
	return nil
}

func shifts(body []byte) int {
	if bytes.Count(body, []byte("{")) <= maxShifts {
		return 0 // there are fewer operations
	}
	var operations []map[string]json.RawMessage // keys are compared exactly, as in the library that applies the patch
	if json.Unmarshal(body, &operations) != nil {
		return 0
	}
	n := 0
	for _, operation := range operations {
		var op, path, from string
		if json.Unmarshal(operation["op"], &op) != nil || json.Unmarshal(operation["path"], &path) != nil {
			continue
		}
		_ = json.Unmarshal(operation["from"], &from) // it may not exist
		n += Shifts(op, path, from)
	}
	return n
}

// Shifts returns how often an operation of a JSON patch may shift list elements.
func Shifts(op, path, from string) int {
	n := 0
	if (op == "add" || op == "remove" || op == "copy" || op == "move") && isIndex(path) {
		n++
	}
	if op == "move" && isIndex(from) {
		n++
	}
	return n
}

// CheckShifts returns an error if a JSON patch may shift list elements too often.
func CheckShifts(n int) error {
	if n > maxShifts {
		return fmt.Errorf("the patch has %d operations that insert elements into lists or remove some, at most %d allowed: replace the list, append to it (/-), or send several patches", n, maxShifts)
	}
	return nil
}

// isIndex reports whether a path may end with the index of a list element. A field name may look like one.
func isIndex(path string) bool {
	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])
	return err == nil
}

func entries(body []byte) int {
	if bytes.Count(body, []byte(","))+bytes.Count(body, []byte("[")) <= maxMerged {
		return 0
	}
	var document any
	if json.Unmarshal(body, &document) != nil {
		return 0
	}
	return entriesOf(document)
}

// CheckLists returns an error if a built-in object or a patch has too many entries in lists that are merged by key.
// It allows twice MaxKeyed, because existing objects may already exceed the limit.
func CheckLists(document any) error {
	if n := keyedIn(document); n > 2*MaxKeyed {
		return fmt.Errorf("the object has %d entries in lists that are merged by key, such as secrets, finalizers and webhooks, at most %d allowed: distribute them over several objects", n, MaxKeyed)
	}
	return nil
}

// CheckMaps returns an error if an object or a patch has too many entries in one map.
func CheckMaps(document any) error {
	if _, n := values.Measure(document, 0); n > MaxFields {
		return fmt.Errorf("the object has a map with %d entries, at most %d allowed: distribute them over several objects", n, MaxFields)
	}
	return nil
}

func keyedIn(document any) int {
	n := 0
	fields, _ := document.(map[string]any)
	path, isOperation := fields["path"].(string) // of a JSON patch
	for name, value := range fields {
		if isOperation && name == "value" {
			name = path[strings.LastIndexByte(path, '/')+1:]
		}
		if list, ok := value.([]any); ok && keyed.Has(name) {
			n += len(list)
		}
	}
	for value := range valuesIn(document) {
		n += keyedIn(value)
	}
	return n
}

func entriesOf(document any) int {
	list, _ := document.([]any)
	n := len(list)
	for value := range valuesIn(document) {
		n += entriesOf(value)
	}
	return n
}

func valuesIn(document any) iter.Seq[any] {
	switch document := document.(type) {
	case map[string]any:
		return maps.Values(document)
	case []any:
		return slices.Values(document)
	default:
		return func(func(any) bool) {}
	}
}
