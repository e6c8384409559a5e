// Package quantities limits the exponents of quantities before they are parsed, because parsers and comparisons compute
// 10^exponent: 1e-100000000 takes 100 s.
package quantities

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/request/values"
)

const (
	//reference:limit request | quantity, or a similar text in a ResourceQuota, LimitRange, protobuf or patch of a webhook or policy: digits | 400
	maxDigits = 100
	//reference:limit request | quantity, or a similar text there: sum of all exponents of a body | 400
	maxExponents = 100_000
	//reference:limit request | quantity in CEL: exponent | the expression fails
	maxExponent = 999
)

var number = regexp.MustCompile(`^[+-]?([0-9.]+)(?:[eE][+-]?([0-9]+)$)?`)

// exponentOf returns the exponent of a quantity, or a large number if it has too many digits. Other texts have none.
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

// Parse is resource.ParseQuantity for quantities of tenants.
func Parse(text string) (resource.Quantity, error) {
	if exponentOf([]byte(text)) > maxExponent {
		return resource.Quantity{}, fmt.Errorf("the quantity %.20q has more than %d digits, or an exponent of more than %d", text, maxDigits, maxExponent)
	}
	return resource.ParseQuantity(text)
}

// Sum is the sum of the exponents of the quantities in an object.
type Sum struct {
	exponents int
	err       error
}

// Add adds a text, which may be a quantity.
func (s *Sum) Add(text []byte) {
	if s.exponents += exponentOf(text); s.exponents > maxExponents && s.err == nil {
		s.err = fmt.Errorf("%.20q and other quantities have exponents of more than %d together, or more than %d digits", text, maxExponents, maxDigits)
	}
}

// Err returns an error if the sum exceeds the limit.
func (s *Sum) Err() error { return s.err }

// Check returns an error if an object or patch that passes values.Check contains expensive quantities. It checks all
// texts, because a patch may copy them. A text may look like a quantity, e.g. an abbreviated commit such as 12e4567.
func Check(data []byte, mediaType string) (err error) {
	var sum Sum
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		values.InProtobuf(data, sum.Add)
		return sum.Err()
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return err
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(data)) // it returns repeated fields, too
	decoder.UseNumber()
	for token, end := decoder.Token(); sum.Err() == nil && end == nil; token, end = decoder.Token() {
		sum.Add(bytes.TrimSpace(fmt.Append(nil, token)))
	}
	return sum.Err()
}
