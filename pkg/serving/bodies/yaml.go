package bodies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// maxValues is the maximum number of values in YAML. The decoder uses 270 bytes for each, i.e. 400 MB for a body of 3 MiB.
// A definition of 300 KB has 7,000 values, and the largest accepted map 100,000.
//
//reference:limit request | body: values in YAML, which applied objects are | 413
const maxValues = 200_000

// checkYAML returns an error if a body in YAML has too many values, or is larger than largest when its aliases are
// replaced by what they refer to, as all decoders do. They limit the number of replaced values, but not their size:
// 90 KB become 200 MB.
func checkYAML(data []byte, contentType string, largest int64) *apierrors.StatusError {
	mediaType, _, _ := mime.ParseMediaType(contentType) // upstream rejects malformed ones
	if mediaType != runtime.ContentTypeYAML && mediaType != string(types.ApplyYAMLPatchType) {
		return nil
	}
	if len(data) > maxValues && valuesIn(data) > maxValues {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d values in YAML, which applied objects are", maxValues))
	}
	if !bytes.ContainsRune(data, '&') || !bytes.ContainsRune(data, '*') || json.Valid(data) { // JSON has no aliases
		return nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if (sizes{}).of(&document, largest+1) > largest {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d with the values of all YAML aliases", largest))
	}
	return nil
}

// valuesIn returns the maximum number of values in YAML, by its separators. Strings are skipped in JSON only, because
// quotes in YAML can also be part of a text.
func valuesIn(data []byte) (n int) {
	isJSON, inString := json.Valid(data), false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '"':
			inString = isJSON && !inString
		case '\\':
			if inString {
				i++
			}
		case '\n', '-', '?': // they separate values only in the block style
			if !isJSON && (c == '\n' || i+1 < len(data) && bytes.IndexByte([]byte(" \t\n"), data[i+1]) >= 0) {
				n++
			}
		case ',', ':', '[', '{':
			if !inString {
				n++
			}
		}
	}
	return n
}

// sizes has the sizes of the nodes that aliases refer to.
type sizes map[*yaml.Node]int64

// of returns the approximate size of a node in bytes, or most if it is larger.
func (s sizes) of(node *yaml.Node, most int64) int64 {
	if node.Kind == yaml.AliasNode {
		size, ok := s[node.Alias]
		if !ok {
			s[node.Alias] = 0 // an alias within the node is an error of decoders
			size = s.of(node.Alias, most)
			s[node.Alias] = size
		}
		return size
	}
	size := int64(len(node.Value) + len(`"":`))
	for _, child := range node.Content {
		size = min(size+s.of(child, most), most)
	}
	return size
}
