// Package patchcosts limits what the body of a request to write makes libraries do that compare the entries of
// lists with each other, or copy a list for each operation. These ignore the deadline of the request. The limits need
// neither the object nor its schema, so that they are for built-in kinds as well.
package patchcosts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// maxShifts is the number of operations of a JSON patch that insert an element into a list or remove one, each of
	// which copies the list. 1,000 take 3 s for a list of 500,000 elements, the longest that is stored.
	maxShifts = 1000
	// maxMerged is the number of entries in all lists of a strategic merge patch, each of which is compared
	// with all entries that the object has.
	maxMerged = 1000
	// MaxKeyed is the number of entries in all lists of a built-in object that are merged by key. A strategic merge patch
	// compares each with each: 1,000 take 0.1 s, 10,000 take 10 s.
	MaxKeyed = 1000
	// MaxFields is the number of entries of one map. The fields that a write changes are inserted into a sorted list in any
	// order, which moves half of the list each time: 50,000 take 0.7 s, 200,000 take 11 s.
	MaxFields = 50_000
)

// keyed are the lists of built-in kinds that are merged by key. Custom resources have a schema to find them by.
var keyed = sets.New("conditions", "finalizers", "imagePullSecrets", "matchConditions", "ownerReferences", "secrets", "validationActions", "variables", "webhooks", "x-kubernetes-validations")

// Check returns an error if a body with a media type is above the limits.
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

// shifts returns the number of operations of a JSON patch that may shift the elements of a list.
func shifts(body []byte) int {
	if bytes.Count(body, []byte("{")) <= maxShifts {
		return 0 // there are not as many operations
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
		if json.Unmarshal(operation["from"], &from) != nil {
			from = ""
		}
		n += Shifts(op, path, from)
	}
	return n
}

// Shifts returns how many times an operation of a JSON patch may shift the elements of a list.
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

// CheckShifts returns an error if the operations of a JSON patch may shift the elements of lists too many times.
func CheckShifts(n int) error {
	if n > maxShifts {
		return fmt.Errorf("the patch has %d operations that insert elements into lists or remove some, at most %d allowed: replace the list, append to it (/-), or send several patches", n, maxShifts)
	}
	return nil
}

// isIndex reports whether a path may end in the index of an element. The name of a field can look like one.
func isIndex(path string) bool {
	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])
	return err == nil
}

// entries returns the number of entries in all lists of a document.
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

// CheckLists returns an error if a built-in object, or a patch, has too many entries in lists that are merged by key. These
// are twice as many as an object may have, which is not known yet to have had more before.
func CheckLists(document any) error {
	if n := keyedIn(document); n > 2*MaxKeyed {
		return fmt.Errorf("the object has %d entries in lists that are merged by key, such as secrets, finalizers and webhooks, at most %d allowed: distribute them over several objects", n, MaxKeyed)
	}
	return nil
}

// CheckMaps returns an error if an object or a patch has too many entries in one map.
func CheckMaps(document any) error {
	if n := LargestMap(document); n > MaxFields {
		return fmt.Errorf("the object has a map with %d entries, at most %d allowed: distribute them over several objects", n, MaxFields)
	}
	return nil
}

// LargestMap returns the number of entries of the largest map in a document.
func LargestMap(document any) int {
	n := 0
	switch document := document.(type) {
	case map[string]any:
		n = len(document)
		for _, value := range document {
			n = max(n, LargestMap(value))
		}
	case []any:
		for _, value := range document {
			n = max(n, LargestMap(value))
		}
	default:
	}
	return n
}

// keyedIn returns the number of entries in lists of a document that are merged by key.
func keyedIn(document any) int {
	n := 0
	switch document := document.(type) {
	case map[string]any:
		for name, value := range document {
			if path, ok := document["path"].(string); ok && name == "value" { // of an operation of a JSON patch
				name = path[strings.LastIndexByte(path, '/')+1:]
			}
			if list, ok := value.([]any); ok && keyed.Has(name) {
				n += len(list)
			}
			n += keyedIn(value)
		}
	case []any:
		for _, value := range document {
			n += keyedIn(value)
		}
	default:
	}
	return n
}

func entriesOf(document any) int {
	n := 0
	switch document := document.(type) {
	case map[string]any:
		for _, value := range document {
			n += entriesOf(value)
		}
	case []any:
		n += len(document)
		for _, value := range document {
			n += entriesOf(value)
		}
	default:
	}
	return n
}
