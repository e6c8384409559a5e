package contrib

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Served is what the components serve at /metrics, by scrape job.
type Served map[string][]*dto.MetricFamily

// Add reads an answer of /metrics in Prometheus' text format as job's. Several
// answers of one job are taken together.
func (s Served) Add(job string, answer io.Reader) error {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer)
	if err != nil {
		return fmt.Errorf("reading the metrics of %s: %w", job, err)
	}
	for _, family := range families {
		s[job] = append(s[job], family)
	}
	return nil
}

// added are the metrics and labels that Prometheus adds to what it scrapes.
var (
	addedMetrics = []string{"up", "scrape_duration_seconds"}
	addedLabels  = []string{"job", "instance", "shard"}
)

// Gap is something that an expression uses and nobody serves.
type Gap struct {
	Place string
	// Metric is not served by any of Jobs if Label is empty; otherwise none of its
	// series has the label. Without a metric, the expression groups by the label.
	Metric, Label string
	Jobs          []string
}

// String says what is missing where.
func (g Gap) String() string {
	switch {
	case g.Label == "":
		return fmt.Sprintf("%s: metric %s is not served by %s", g.Place, g.Metric, g.Jobs)
	case g.Metric == "":
		return fmt.Sprintf("%s: groups by %s, which no series of it has", g.Place, g.Label)
	default:
		return fmt.Sprintf("%s: no series of %s has the label %s", g.Place, g.Metric, g.Label)
	}
}

// Missing returns what the expressions use and nobody serves: metrics, and
// labels that no series of a metric carries. A misspelt label is as bad as a
// misspelt metric, since both give an empty panel and no error.
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
			gaps = append(gaps, Gap{Place: use.Place, Metric: selector.Metric, Jobs: s.jobs(selector)})
			continue
		}
		known = append(known, labels...)
		for _, matcher := range selector.Matchers {
			if !slices.Contains(addedLabels, matcher.Label) && !slices.Contains(labels, matcher.Label) {
				gaps = append(gaps, Gap{Place: use.Place, Metric: selector.Metric, Label: matcher.Label})
			}
		}
	}
	for _, label := range use.Query.Grouping {
		// What an absent metric would have cannot be told.
		if complete && !slices.Contains(known, label) {
			gaps = append(gaps, Gap{Place: use.Place, Label: label})
		}
	}
	return gaps
}

// labels returns the labels of the metric's series in the jobs that the
// selector chooses; nil where there is no series.
func (s Served) labels(selector Selector) []string {
	var labels []string
	for _, job := range s.jobs(selector) {
		for _, family := range s[job] {
			extra, ok := partOf(family, selector.Metric)
			if !ok || len(family.GetMetric()) == 0 {
				continue
			}
			labels = append(labels, extra...)
			for _, series := range family.GetMetric() {
				for _, pair := range series.GetLabel() {
					if !slices.Contains(labels, pair.GetName()) {
						labels = append(labels, pair.GetName())
					}
				}
			}
		}
	}
	return labels
}

// jobs returns the jobs that a selector's matchers on job let through. A
// matcher with one of Grafana's variables lets everything through.
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

// partOf says whether name is the family's or that of a part of its histogram
// or summary, and which labels the part adds. Labels are never nil when ok.
func partOf(family *dto.MetricFamily, name string) (labels []string, ok bool) {
	suffix, ok := strings.CutPrefix(name, family.GetName())
	if !ok {
		return nil, false
	}
	switch kind := family.GetType(); {
	case suffix == "" && kind == dto.MetricType_SUMMARY:
		return []string{"quantile"}, true
	case suffix == "" && kind != dto.MetricType_HISTOGRAM:
		return []string{""}, true
	case suffix == "_bucket" && kind == dto.MetricType_HISTOGRAM:
		return []string{"le"}, true
	case (suffix == "_sum" || suffix == "_count") && (kind == dto.MetricType_HISTOGRAM || kind == dto.MetricType_SUMMARY):
		return []string{""}, true
	default:
		return nil, false
	}
}
