// Package values limits the number of values in encoded objects, because decoders need hundreds of bytes for a value of
// two bytes.
package values

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxValues is the maximum number of values in a body, each of which needs up to 300 bytes in decoders. The largest
	// accepted map has 50,000 entries.
	//
	//reference:limit request | body: values, i.e. separators in JSON and YAML, fields of variable length in protobuf | 413
	maxValues = 200_000
	// maxMessages is the maximum number in protobuf, in which an empty value has two bytes. A container of a Pod needs
	// 2 KB. ConfigMaps and Secrets have no large values, but large maps.
	//
	//reference:limit request | body: values in protobuf, except in ConfigMaps and Secrets | 413
	maxMessages = 100_000
	// maxDepth is the maximum nesting in protobuf, as in JSON. The cost of nested schemas is quadratic.
	//
	//reference:limit request | body: nesting in protobuf | 413
	maxDepth = 10_000
	// MaxPaths is the maximum sum of the lengths of the paths of all values. Validation and warnings copy the paths: a
	// key of 2 MB above 3,000 unknown fields needs 6 GB. Definitions of 1 MB have about 15 MB.
	//
	//reference:limit request | body: lengths of the paths of all values, together | 413
	//reference:limit object =64 MiB | custom resource: lengths of the paths of all values, together | 413
	MaxPaths = 64 << 20
)

// Check returns an error if an object or patch of a resource, which may be empty, has too many values. The media type
// has no parameters. Unknown ones are treated as JSON.
func Check(data []byte, mediaType, resource string) error {
	if len(data) <= maxDepth {
		return nil
	}
	n, paths, most := 0, 0, maxValues
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		if resource != "configmaps" && resource != "secrets" {
			most = maxMessages
		}
		addFields(&n, content(data), most, 0, func([]byte) {})
		if resource == "customresourcedefinitions" { // some of its strings are decoded as JSON
			n = max(n, separators(data, false))
		}
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		n = separators(data, true)
	default:
		n, paths = InJSON(data)
	}
	if n > most {
		return fmt.Errorf("limit is %d values: distribute them over several objects", most)
	}
	if paths > MaxPaths {
		return ErrPaths
	}
	return nil
}

// ErrPaths is returned for documents above MaxPaths.
var ErrPaths = fmt.Errorf("limit is %d bytes for the paths of all values: use shorter keys, or less nesting", MaxPaths)

// PerIndex is the length of an index in a path.
const PerIndex = len("[000]")

// Measure returns the sum of the lengths of the paths of all values in a document with a path of the given length, and the
// number of entries of the largest map.
func Measure(document any, path int) (paths, largest int) {
	paths = path
	add := func(child any, segment int) {
		p, l := Measure(child, path+segment)
		paths, largest = paths+p, max(largest, l)
	}
	switch value := document.(type) {
	case map[string]any:
		largest = len(value)
		for key := range value {
			add(value[key], len(".")+len(key))
		}
	case []any:
		for i := range value {
			add(value[i], PerIndex)
		}
	default:
	}
	return paths, largest
}

// InJSON returns the maximum number of values in JSON, and the sum of the lengths of their paths. Keys have their quotes and escapes.
func InJSON(data []byte) (n, paths int) {
	var base, path, text int // lengths of the path of the list or object, of the value, and of the last string
	var parents []int
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			start := i
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			text = i - start
			continue
		case ':':
			path = base + text
		case ',':
			path = base + PerIndex
		case '{', '[':
			parents = append(parents, base)
			base, path = path, path+PerIndex
		case '}', ']':
			if last := len(parents) - 1; last >= 0 {
				base, parents = parents[last], parents[:last]
			}
			continue
		default:
			continue
		}
		n++
		paths += path
	}
	return n, paths
}

// separators returns the number of separators of values, including those of the block style of YAML. Quotes can also be
// part of a text.
func separators(data []byte, blocks bool) (n int) {
	for i, c := range data {
		switch c {
		case '-', '?': // followed by a space or one of many line breaks, some of which are not ASCII
			if blocks && (i+1 == len(data) || data[i+1] <= ' ' || data[i+1] > '~') {
				n++
			}
		case ',', ':', '[', '{':
			n++
		}
	}
	return n
}

// InProtobuf calls visit for each value of variable length in an object encoded as protobuf, which passes Check.
func InProtobuf(data []byte, visit func([]byte)) {
	n := 0
	addFields(&n, content(data), maxValues, 0, visit)
}

func content(data []byte) []byte { return bytes.TrimPrefix(data, []byte("k8s\x00")) }

// addFields counts the values of variable length in what is a message or a string, up to most+1, which it also returns
// if they are nested too deeply. The decoders of Kubernetes create the values before an error, so it counts them, too.
//
// Encoding: https://protobuf.dev/programming-guides/encoding
func addFields(n *int, data []byte, most, depth int, visit func([]byte)) {
	if depth > maxDepth {
		*n = most + 1
	}
	for *n <= most {
		tag, rest, ok := varint(data)
		if !ok {
			return
		}
		var size uint64
		switch tag & 7 {
		case 0: // varint
			_, rest, ok = varint(rest)
		case 1: // 64 bits
			size = 8
		case 2: // length and value
			size, rest, ok = varint(rest)
			if ok = ok && size <= uint64(len(rest)); ok {
				*n++
				visit(rest[:size])
				addFields(n, rest[:size], most, depth+1, visit)
			}
		case 5: // 32 bits
			size = 4
		}
		if !ok || size > uint64(len(rest)) {
			return
		}
		data = rest[size:]
	}
}

// varint accepts more than 64 bits, like the decoders of Kubernetes.
func varint(data []byte) (v uint64, rest []byte, ok bool) {
	for i := range min(len(data), binary.MaxVarintLen64) {
		v |= uint64(data[i]&0x7f) << (7 * i)
		if data[i] < 0x80 {
			return v, data[i+1:], true
		}
	}
	return 0, nil, false
}
