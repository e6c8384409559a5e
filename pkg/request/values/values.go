// Package values limits the number of values in encoded objects, because decoders need hundreds of bytes for a value of
// two bytes. It also limits quantities.
package values

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
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
	//reference:limit request | quantity, or a similar text in a ResourceQuota, LimitRange, protobuf or patch of a webhook: digits | 400
	maxDigits = 100
	//reference:limit request | quantities, or similar texts, in a ResourceQuota, LimitRange, protobuf or patch of a webhook: sum of the exponents | 400
	maxExponents = 100_000
	//reference:limit request | quantity in CEL: exponent | the expression fails
	maxExponent = 999
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
		n = fieldsIn(data, most, func([]byte) {})
		if resource == "customresourcedefinitions" { // some of its strings are decoded as JSON
			n = max(n, separators(data, false))
		}
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		if !json.Valid(data) {
			n = separators(data, true)
			break
		}
		fallthrough
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

// Paths returns the sum of the lengths of the paths of all values in a document.
func Paths(document any, path int) int {
	n := path
	switch value := document.(type) {
	case map[string]any:
		for key := range value {
			n += Paths(value[key], path+len(".")+len(key))
		}
	case []any:
		for i := range value {
			n += Paths(value[i], path+PerIndex)
		}
	default:
	}
	return n
}

// InJSON returns the maximum number of values in JSON, and Paths for it. Keys have their quotes and escapes.
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

// fieldsIn returns the maximum number of values of variable length in an object encoded as protobuf, or most+1 if there
// are more or they are nested too deeply. It calls visit for each.
func fieldsIn(data []byte, most int, visit func([]byte)) (n int) {
	addFields(&n, bytes.TrimPrefix(data, []byte("k8s\x00")), most, 0, visit)
	return n
}

// addFields counts the values of variable length in what is a message or a string. The decoders of Kubernetes create
// the values before an error, so it counts them, too.
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

var number = regexp.MustCompile(`^[+-]?([0-9.]+)(?:[eE][+-]?([0-9]+)$)?`)

// exponentOf returns the exponent of a quantity, or a large number if it has too many digits. Other texts have none.
// Parsers and comparisons compute 10^exponent: 1e-100000000 takes 100 s.
func exponentOf(text []byte) int {
	parts := number.FindSubmatch(text)
	if parts == nil {
		return 0
	}
	exponent, err := strconv.Atoi("0" + string(parts[2]))
	if err != nil || len(parts[1]) > maxDigits {
		return math.MaxInt32
	}
	return exponent
}

// ParseQuantity is resource.ParseQuantity for quantities of tenants.
func ParseQuantity(text string) (resource.Quantity, error) {
	if exponentOf([]byte(text)) > maxExponent {
		return resource.Quantity{}, fmt.Errorf("the quantity %.20q has more than %d digits, or an exponent of more than %d", text, maxDigits, maxExponent)
	}
	return resource.ParseQuantity(text)
}

// CheckQuantities returns an error if an object or patch that passes Check contains expensive quantities. It checks all
// texts, because a patch may copy them. A text may look like one, e.g. an abbreviated commit such as 12e4567.
func CheckQuantities(data []byte, mediaType string) (err error) {
	sum := 0
	check := func(text []byte) {
		if sum += exponentOf(text); sum > maxExponents && err == nil {
			err = fmt.Errorf("%.20q and other quantities have exponents of more than %d together, or more than %d digits", text, maxExponents, maxDigits)
		}
	}
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		fieldsIn(data, maxValues, check)
		return err
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		data, err = yaml.YAMLToJSON(data)
	}
	decoder := json.NewDecoder(bytes.NewReader(data)) // it returns repeated fields, too
	decoder.UseNumber()
	for token, end := decoder.Token(); err == nil && end == nil; token, end = decoder.Token() {
		check(bytes.TrimSpace(fmt.Append(nil, token)))
	}
	return err
}
