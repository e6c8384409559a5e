package contrib_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseQuery(t *testing.T) {
	for _, test := range []struct {
		expr string
		want Query
	}{
		{"up", Query{Selectors: []Selector{{Metric: "up"}}}},
		{
			`sum by (job, verb) (rate(apiserver_request_total{job="shard", code=~"5.."}[5m]))`,
			Query{
				Selectors: []Selector{{Metric: "apiserver_request_total", Matchers: []Matcher{{"job", "=", "shard"}, {"code", "=~", "5.."}}}},
				Grouping:  []string{"job", "verb"},
			},
		},
		{
			"histogram_quantile(0.99, sum(rate(a_bucket[$__rate_interval])) without (le))",
			Query{Selectors: []Selector{{Metric: "a_bucket"}}, Grouping: []string{"le"}},
		},
		{
			`a / on(x) group_left(y) b offset 5m > bool 1e3 # and c`,
			Query{
				Selectors: []Selector{{Metric: "a"}, {Metric: "b"}},
				Grouping:  []string{"x", "y"},
			},
		},
		{
			`a{note!="not_a_metric{x='y'} \" really"} or vector(0) unless ns:rule:sum[1h:5m] - Inf`,
			Query{Selectors: []Selector{{Metric: "a", Matchers: []Matcher{{"note", "!=", `not_a_metric{x='y'} \" really`}}}, {Metric: "ns:rule:sum"}}},
		},
		{
			`topk(5, count without(instance) (sum)) + sum (by)`,
			Query{
				Selectors: []Selector{{Metric: "sum"}},
				Grouping:  []string{"instance"},
			},
		},
		{`sum(go_goroutines{job=~"$job"}) by (instance)`, Query{
			Selectors: []Selector{{Metric: "go_goroutines", Matchers: []Matcher{{"job", "=~", "$job"}}}},
			Grouping:  []string{"instance"},
		}},
		{"1 + 2 * 5m", Query{}},
	} {
		t.Run(test.expr, func(t *testing.T) {
			got, err := ParseQuery(test.expr)
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestParseQueryErrors(t *testing.T) {
	for expr, want := range map[string]string{
		`a{b="c`:             "a string does not end",
		`a{b`:                "the braces of a selector do not end",
		`rate(a[5m)`:         "a range does not end",
		`a{"b"}`:             "a matcher starts with",
		`sum by (a`:          "a list of labels does not end",
		`{__name__=~"hide"}`: "a selector without a metric name",
	} {
		_, err := ParseQuery(expr)
		require.ErrorContains(t, err, want, expr)
		require.ErrorContains(t, err, "reading PromQL", expr)
	}
}
