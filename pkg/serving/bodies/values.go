package bodies

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"mime"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// maxValues is the maximum number of values in a body, each of which needs up to 300 bytes in decoders. The largest
	// accepted map has 50,000 entries.
	//
	//reference:limit request | body: values, i.e. separators in JSON or YAML, or fields of variable length in protobuf | 413
	maxValues = 200_000
	// maxLargeValues is the maximum for types with large values. Until it is rejected, a definition needs 3 KB for each
	// schema, and a Pod 2 KB for each container: 3 GB for a body of 3 MiB. Definitions of 1.5 MiB have fewer values.
	//
	//reference:limit request | body: values in definitions, and in protobuf other than ConfigMaps and Secrets | 413
	maxLargeValues = 100_000
	// maxDepth is the maximum nesting in protobuf, as in JSON. The cost of nested schemas is quadratic.
	//
	//reference:limit request | body: nesting in protobuf | 413
	maxDepth = 10_000
)

var (
	definitions = sets.New("customresourcedefinitions", "apiresourceschemas")
	largeMaps   = sets.New("configmaps", "secrets")
)

// checkValues returns an error if a body has too many values. Decoders need hundreds of bytes for one of two bytes.
func checkValues(data []byte, contentType, resource string, largest int64) *apierrors.StatusError {
	mediaType, _, _ := mime.ParseMediaType(contentType) // upstream rejects malformed ones
	isYAML := mediaType == runtime.ContentTypeYAML || mediaType == string(types.ApplyYAMLPatchType)
	isProtobuf := mediaType == runtime.ContentTypeProtobuf
	most := maxValues
	if definitions.Has(resource) || isProtobuf && !largeMaps.Has(resource) {
		most = maxLargeValues
	}
	if len(data) > most || isProtobuf {
		var n int
		switch {
		case isYAML:
			n = valuesIn(data, json.Valid(data))
		case isProtobuf:
			n = fieldsIn(data, most)
		case mediaType == runtime.ContentTypeCBOR || mediaType == string(types.ApplyCBORPatchType):
			n = itemsIn(data)
		default:
			n = valuesIn(data, true)
		}
		if n > most {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d values: distribute them over several objects", most))
		}
	}
	if isYAML {
		return checkAliases(data, largest)
	}
	return nil
}

// checkAliases returns an error if YAML is larger than largest when its aliases are replaced by what they refer to, as
// all decoders do. They limit the number of replaced values, but not their size: 90 KB become 200 MB.
func checkAliases(data []byte, largest int64) *apierrors.StatusError {
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

// valuesIn returns the maximum number of values in JSON or YAML, by its separators. Strings are skipped in JSON only,
// because quotes in YAML can also be part of a text.
func valuesIn(data []byte, isJSON bool) (n int) {
	inString := false
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

// fieldsIn returns the maximum number of values of variable length in an object encoded as protobuf, or most+1 if there
// are more or they are nested too deeply.
func fieldsIn(data []byte, most int) (n int) {
	addFields(&n, bytes.TrimPrefix(data, []byte("k8s\x00")), most, 0)
	return n
}

// addFields counts the values of variable length in what is a message or a string. The decoders of Kubernetes create
// the values before an error, so it counts them, too.
//
// Encoding: https://protobuf.dev/programming-guides/encoding
func addFields(n *int, data []byte, most, depth int) {
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
				addFields(n, rest[:size], most, depth+1)
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

// itemsIn returns the number of data items in CBOR.
//
// Encoding: https://www.rfc-editor.org/rfc/rfc8949#section-3
func itemsIn(data []byte) (n int) {
	for ; len(data) > 0; n++ {
		kind, size := data[0]>>5, uint64(data[0]&31)
		data = data[1:]
		if width := 1 << (size - 24); size >= 24 && size < 28 { // of the size that follows
			if width > len(data) {
				return n
			}
			var buffer [8]byte
			copy(buffer[8-width:], data)
			size, data = binary.BigEndian.Uint64(buffer[:]), data[width:]
		} else if size >= 28 { // indefinite or malformed
			size = 0
		}
		if kind == 2 || kind == 3 { // strings
			if size > uint64(len(data)) {
				return n
			}
			data = data[size:]
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
