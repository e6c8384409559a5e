package contrib_test

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Served contains the metrics of components by scrape job.
type Served map[string][]*dto.MetricFamily

// Add adds a response of /metrics in Prometheus' text format. A job may have several responses.
func (s Served) Add(job string, response io.Reader) error {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response)
	if err != nil {
		return fmt.Errorf("parsing the metrics of %s: %w", job, err)
	}
	for _, family := range families {
		s[job] = append(s[job], family)
	}
	return nil
}

// addedMetrics and addedLabels are added by Prometheus.
var (
	addedMetrics = []string{"up", "scrape_duration_seconds"}
	addedLabels  = []string{"job", "instance", "shard"}
)

// Gap is a metric or label of an expression that is not served.
type Gap struct {
	Location string
	// If Label is empty, none of Jobs serve Metric. Otherwise none of its series have the label, or the label with Value if that is
	// set. If Metric is empty, the expression groups by the label.
	Metric, Label, Value string
	Jobs                 []string
}

// String returns a description.
func (g Gap) String() string {
	switch {
	case g.Label == "":
		return fmt.Sprintf("%s: metric %s is not served by %s", g.Location, g.Metric, g.Jobs)
	case g.Metric == "":
		return fmt.Sprintf("%s: groups by %s, but none of its series have the label", g.Location, g.Label)
	case g.Value == "":
		return fmt.Sprintf("%s: no series of %s has the label %s", g.Location, g.Metric, g.Label)
	default:
		return fmt.Sprintf("%s: no series of %s has %s=%q", g.Location, g.Metric, g.Label, g.Value)
	}
}

// Missing returns metrics, labels and values in the expressions that are not served. They must be found because a dashboard shows an
// empty panel for them instead of an error.
func (s Served) Missing(uses []Use) []Gap {
	missing := make([]Gap, 0, len(uses))
	for _, use := range uses {
		missing = append(missing, s.missing(use)...)
	}
	return missing
}

func (s Served) missing(use Use) []Gap {
	var gaps []Gap
	known := slices.Clone(addedLabels)
	complete := true
	for _, selector := range use.Query.Selectors {
		if slices.Contains(addedMetrics, selector.Metric) {
			continue
		}
		labels := s.labels(selector)
		if labels == nil {
			complete = false
			gaps = append(gaps, Gap{Location: use.Location, Metric: selector.Metric, Jobs: s.jobs(selector)})
			continue
		}
		known = slices.AppendSeq(known, maps.Keys(labels))
		for _, matcher := range selector.Matchers {
			values, ok := labels[matcher.Label]
			switch {
			case slices.Contains(addedLabels, matcher.Label):
			case !ok:
				gaps = append(gaps, Gap{Location: use.Location, Metric: selector.Metric, Label: matcher.Label})
			case matcher.Op == "=" && !slices.Contains(values, matcher.Value):
				gaps = append(gaps, Gap{Location: use.Location, Metric: selector.Metric, Label: matcher.Label, Value: matcher.Value})
			}
		}
	}
	for _, label := range use.Query.Grouping {
		// The labels of a missing metric are unknown.
		if complete && !slices.Contains(known, label) {
			gaps = append(gaps, Gap{Location: use.Location, Label: label})
		}
	}
	return gaps
}

// labels returns the labels and values of a metric in the jobs that the selector matches, or nil if there is no series.
func (s Served) labels(selector Selector) map[string][]string {
	var labels map[string][]string
	for _, job := range s.jobs(selector) {
		for _, family := range s[job] {
			if !hasPart(family, selector.Metric) || len(family.GetMetric()) == 0 {
				continue
			}
			if labels == nil {
				labels = map[string][]string{}
			}
			for _, series := range family.GetMetric() {
				for _, pair := range series.GetLabel() {
					labels[pair.GetName()] = append(labels[pair.GetName()], pair.GetValue())
				}
				for _, quantile := range series.GetSummary().GetQuantile() {
					labels["quantile"] = append(labels["quantile"], strconv.FormatFloat(quantile.GetQuantile(), 'g', -1, 64))
				}
				for _, bucket := range series.GetHistogram().GetBucket() {
					labels["le"] = append(labels["le"], strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64))
				}
			}
		}
	}
	return labels
}

// jobs returns the jobs that a selector matches. A matcher with a variable of Grafana matches all.
func (s Served) jobs(selector Selector) []string {
	var jobs []string
	for job := range s {
		if !slices.ContainsFunc(selector.Matchers, func(m Matcher) bool { return m.Label == "job" && !m.matches(job) }) {
			jobs = append(jobs, job)
		}
	}
	slices.Sort(jobs)
	return jobs
}

func (m Matcher) matches(value string) bool {
	equal := m.Value == value
	if strings.HasSuffix(m.Op, "~") {
		pattern, err := regexp.Compile("^(?:" + m.Value + ")$")
		equal = err == nil && pattern.MatchString(value)
	}
	return strings.Contains(m.Value, "$") || equal != strings.HasPrefix(m.Op, "!")
}

// hasPart reports whether name is the name of the family, or of a part of its histogram or summary.
func hasPart(family *dto.MetricFamily, name string) bool {
	suffix, ok := strings.CutPrefix(name, family.GetName())
	kind := family.GetType()
	switch {
	case !ok:
		return false
	case suffix == "":
		return kind != dto.MetricType_HISTOGRAM
	case suffix == "_bucket":
		return kind == dto.MetricType_HISTOGRAM
	default:
		return (suffix == "_sum" || suffix == "_count") && (kind == dto.MetricType_HISTOGRAM || kind == dto.MetricType_SUMMARY)
	}
}
