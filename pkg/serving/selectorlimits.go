package serving

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxRequirements and maxSelectorBytes bound a selector, and maxRequirements the
	// ranges of one of shards. Each event of a resource is matched with the selectors
	// of all its watches, one after the other, and their ranges are sorted together.
	maxRequirements  = 128
	maxSelectorBytes = 16 << 10
	// partsPerPlace is how many requirements of selectors cost an event no more than
	// a watch without any.
	partsPerPlace = 4
	// rangeSeparator is between the ranges of a selector of shards.
	rangeSeparator = "||"
	// shortQuery is the length of a query that has neither too many requirements nor
	// too long a selector.
	shortQuery = maxRequirements
)

// checkSelectors returns why the selectors of a list or watch are refused.
func checkSelectors(r *http.Request) error {
	if len(r.URL.RawQuery) <= shortQuery {
		return nil
	}
	query := r.URL.Query()
	for _, parameter := range []string{"labelSelector", "fieldSelector", shardSelectorParameter} {
		for _, selector := range query[parameter] {
			if n := len(selector); n > maxSelectorBytes {
				return apierrors.NewBadRequest(fmt.Sprintf("%s has %d bytes, at most %d are allowed: select by a label that all these objects have", parameter, n, maxSelectorBytes))
			}
			if n := requirements(parameter, selector); n > maxRequirements {
				return apierrors.NewBadRequest(fmt.Sprintf("%s has %d requirements, at most %d are allowed: select by a label that all these objects have", parameter, n, maxRequirements))
			}
		}
	}
	return nil
}

// requirements returns how many ranges a selector of shards has, or how many parts
// another one has that commas separate. Those
// between parentheses separate values of one requirement, which cost a tenth as much.
func requirements(parameter, selector string) int {
	if parameter == shardSelectorParameter {
		return 1 + strings.Count(selector, rangeSeparator)
	}
	n, depth := 1, 0
	for _, c := range selector {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth <= 0:
			n++
		}
	}
	return n
}

// watchPlaces is the inflight.Count of watches: an event is matched with the
// selectors of all of them, and with each of their values.
func watchPlaces(r *http.Request) int64 {
	parts, query := 0, r.URL.Query()
	for parameter, separator := range map[string]string{"labelSelector": ",", "fieldSelector": ",", shardSelectorParameter: rangeSeparator} {
		for _, selector := range query[parameter] {
			parts += 1 + strings.Count(selector, separator)
		}
	}
	return 1 + int64(parts/partsPerPlace)
}
