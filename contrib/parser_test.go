package contrib_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
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

// keywords are words of PromQL that are neither metrics nor functions.
var keywords = []string{
	"and", "atan2", "bool", "inf", "nan", "offset", "or", "unless", "start", "end", "smoothing", "anchored",
}

// clauses are the words after which a parenthesis holds label names.
var clauses = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}

// ParseQuery reads a PromQL expression as far as it needs to know its metrics
// and labels: it tells names from functions, keywords, label names, durations
// and strings. It does not check that Prometheus would evaluate the expression.
func ParseQuery(expr string) (Query, error) {
	p := &promParser{rest: expr}
	if err := p.run(); err != nil {
		return Query{}, fmt.Errorf("reading PromQL %q: %w", expr, err)
	}
	return p.query, nil
}

// promParser walks an expression token by token.
type promParser struct {
	rest  string
	query Query
}

func (p *promParser) run() error {
	for {
		token, err := p.next()
		switch {
		case err != nil:
			return err
		case token == "":
			return nil
		case token == "[":
			if err := p.skipRange(); err != nil {
				return err
			}
		case token == "{":
			// A selector without a name would hide what it uses.
			return fmt.Errorf("a selector without a metric name before %q", p.rest)
		case isIdentifier(token):
			if err := p.identifier(token); err != nil {
				return err
			}
		}
	}
}

// identifier decides what a word is by what follows it.
func (p *promParser) identifier(word string) error {
	lower := strings.ToLower(word)
	following := p.peek()
	switch {
	case slices.Contains(clauses, lower) && following == '(':
		labels, err := p.labels()
		p.query.Grouping = append(p.query.Grouping, labels...)
		return err
	case following == '(' || slices.Contains(keywords, lower) || slices.Contains(clauses, lower):
		return nil
	case followsAggregation(lower, p.rest):
		return nil
	}
	selector := Selector{Metric: word}
	if following == '{' {
		matchers, err := p.matchers()
		if err != nil {
			return err
		}
		selector.Matchers = matchers
	}
	p.query.Selectors = append(p.query.Selectors, selector)
	return nil
}

// followsAggregation recognises the form `sum by (x) (…)`, where the name of
// the aggregation is followed by its clause and not by a parenthesis.
func followsAggregation(word, rest string) bool {
	aggregations := []string{
		"avg", "bottomk", "count", "count_values", "group", "limitk", "limit_ratio", "max", "min", "quantile", "stddev",
		"stdvar", "sum", "topk",
	}
	rest = strings.TrimLeftFunc(rest, unicode.IsSpace)
	return slices.Contains(aggregations, word) && (strings.HasPrefix(rest, "by") || strings.HasPrefix(rest, "without"))
}

// labels reads a parenthesis of label names.
func (p *promParser) labels() ([]string, error) {
	if _, err := p.next(); err != nil { // the opening parenthesis, seen by peek
		return nil, err
	}
	var labels []string
	for {
		token, err := p.next()
		switch {
		case err != nil:
			return nil, err
		case token == "":
			return nil, errors.New("a list of labels does not end")
		case token == ")":
			return labels, nil
		case isIdentifier(token):
			labels = append(labels, token)
		}
	}
}

// matchers reads the braces of a selector.
func (p *promParser) matchers() ([]Matcher, error) {
	if _, err := p.next(); err != nil { // the opening brace, seen by peek
		return nil, err
	}
	var matchers []Matcher
	for {
		token, err := p.next()
		switch {
		case err != nil:
			return nil, err
		case token == "":
			return nil, errors.New("the braces of a selector do not end")
		case token == "}":
			return matchers, nil
		case token == ",":
		case isIdentifier(token):
			matchers = append(matchers, Matcher{Label: token})
		case len(matchers) == 0:
			return nil, fmt.Errorf("a matcher starts with %q", token)
		case token == "=" || token == "!" || token == "~":
			matchers[len(matchers)-1].Op += token
		default:
			matchers[len(matchers)-1].Value = strings.Trim(token, token[:1])
		}
	}
}

// skipRange passes over [5m] and [1h:5m], and over Grafana's [$__rate_interval].
func (p *promParser) skipRange() error {
	_, rest, found := strings.Cut(p.rest, "]")
	if !found {
		return errors.New("a range does not end")
	}
	p.rest = rest
	return nil
}

// next returns the next token: a word, a number, a string with its quotes, or
// a single character; "" at the end.
func (p *promParser) next() (string, error) {
	p.rest = strings.TrimLeftFunc(p.rest, unicode.IsSpace)
	if p.rest == "" {
		return "", nil
	}
	first, size := utf8.DecodeRuneInString(p.rest)
	end := size
	switch {
	case first == '"' || first == '\'' || first == '`':
		closing := closingQuote(p.rest)
		if closing < 0 {
			return "", fmt.Errorf("a string does not end: %s", p.rest)
		}
		end = closing + 1
	case first == '#':
		end = len(p.rest)
		if newline := strings.IndexByte(p.rest, '\n'); newline >= 0 {
			end = newline
		}
	case isWord(first) || first == '$':
		end = len(p.rest)
		if stop := strings.IndexFunc(p.rest[size:], func(r rune) bool { return !isWord(r) }); stop >= 0 {
			end = size + stop
		}
	}
	token := p.rest[:end]
	p.rest = p.rest[end:]
	return token, nil
}

// peek returns the next character that is no space, or 0.
func (p *promParser) peek() byte {
	rest := strings.TrimLeftFunc(p.rest, unicode.IsSpace)
	if rest == "" {
		return 0
	}
	return rest[0]
}

// closingQuote returns where the string that s starts with ends, or -1.
func closingQuote(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] != '`':
			i++
		case s[i] == s[0]:
			return i
		}
	}
	return -1
}

func isWord(r rune) bool {
	return r == '_' || r == ':' || r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

// isIdentifier reports whether a token is a word and no number or duration.
func isIdentifier(token string) bool {
	r := rune(token[0])
	return isWord(r) && !unicode.IsDigit(r) && r != ':'
}
