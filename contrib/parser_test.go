package contrib_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Selector is one use of a metric in a PromQL expression.
type Selector struct {
	// Metric is the name as written, with the suffix that selects a part of a
	// histogram, such as _bucket.
	Metric   string
	Matchers []Matcher
}

// Matcher is one condition of a selector, such as code=~"5..".
type Matcher struct {
	Label string
	// Op is =, !=, =~ or !~.
	Op    string
	Value string
}

// Query is what a PromQL expression asks for.
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

// ParseQuery finds the metrics and labels of a PromQL expression. It does not check that
// Prometheus would evaluate the expression.
func ParseQuery(expr string) (Query, error) {
	var query Query
	rest := ranges.ReplaceAllString(expr, "")
	for _, clause := range clauses.FindAllStringSubmatch(rest, -1) {
		query.Grouping = append(query.Grouping, labels.FindAllString(clause[1], -1)...)
	}
	// Without its clause, an aggregation is like a function.
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
	// A selector without a name, or what is not understood, would hide what it uses.
	if left := words.ReplaceAllString(rest, ""); strings.ContainsAny(left, `{}[]"'`) {
		return Query{}, fmt.Errorf("reading PromQL %q: %q is not understood", expr, left)
	}
	return query, nil
}
