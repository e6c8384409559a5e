package request

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	//reference:limit object | label selector, also of an access review: length of a key in `matchExpressions` | the selector is invalid
	maxKey = 253 + 1 + 63 // prefix/name
	//reference:limit object | label selector, also of an access review: labels and values of expressions | the selector is invalid
	maxSelected = 1000
)

// LabelSelector is metav1.LabelSelectorAsSelector for selectors of tenants. Upstream's errors contain the key once for
// each value.
func LabelSelector(s *metav1.LabelSelector) (labels.Selector, error) {
	longest := 0
	for _, expression := range s.MatchExpressions {
		longest = max(longest, len(expression.Key))
	}
	if Requirements(s) > maxSelected || longest > maxKey {
		return nil, fmt.Errorf("the selector has more than %d labels and values of expressions, or a key of more than %d bytes", maxSelected, maxKey)
	}
	return metav1.LabelSelectorAsSelector(s)
}

// Requirements returns the number of labels and values of expressions. An expression without values counts as one.
func Requirements(s *metav1.LabelSelector) int {
	n := len(s.MatchLabels)
	for _, expression := range s.MatchExpressions {
		n += max(1, len(expression.Values))
	}
	return n
}
