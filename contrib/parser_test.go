package contrib_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Selector is a metric in a PromQL expression.
type Selector struct {
	// Metric is the name in the expression, including a suffix such as _bucket for a part of a histogram.
	Metric   string
	Matchers []Matcher
}

// Matcher is a condition of a selector, e.g. code=~"5..".
type Matcher struct {
	Label string
	// Op is =, !=, =~ or !~.
	Op    string
	Value string
}

// Query contains the names in a PromQL expression.
type Query struct {
	Selectors []Selector
	// Grouping are the labels in by, without, on, ignoring and group clauses.
	Grouping []string
}

var (
	ranges   = regexp.MustCompile(`\[[^\]]*\]`)
	clauses  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	words    = regexp.MustCompile(`\b([a-zA-Z_][\w:]*)\s*(\{(?:[^}"]|"[^"]*")*\}|\()?`)
	matchers = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	labels   = regexp.MustCompile(`\w+`)

	// keywords are words of PromQL that are neither metrics nor functions.
	keywords = []string{"and", "bool", "inf", "nan", "offset", "or", "unless", "group_left", "group_right"}
)

// ParseQuery returns the metrics and labels in a PromQL expression. It does not check the syntax completely.
func ParseQuery(expr string) (Query, error) {
	var query Query
	rest := ranges.ReplaceAllString(expr, "")
	for _, clause := range clauses.FindAllStringSubmatch(rest, -1) {
		query.Grouping = append(query.Grouping, labels.FindAllString(clause[1], -1)...)
	}
	// Without clauses, aggregations look like functions.
	rest = clauses.ReplaceAllString(rest, "")
	for _, word := range words.FindAllStringSubmatch(rest, -1) {
		if word[2] == "(" || slices.Contains(keywords, strings.ToLower(word[1])) {
			continue
		}
		selector := Selector{Metric: word[1]}
		for _, m := range matchers.FindAllStringSubmatch(word[2], -1) {
			selector.Matchers = append(selector.Matchers, Matcher{m[1], m[2], m[3]})
		}
		query.Selectors = append(query.Selectors, selector)
	}
	// Metrics must not be missed because of a selector without a name or an unsupported expression.
	if remaining := words.ReplaceAllString(rest, ""); strings.ContainsAny(remaining, `{}[]"'`) {
		return Query{}, fmt.Errorf("parsing PromQL %q: %q is not supported", expr, remaining)
	}
	return query, nil
}
