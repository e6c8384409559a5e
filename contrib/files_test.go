package contrib_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

// TestUses checks that all expressions in the files can be parsed and contain metrics. TestMetricsAreServed checks their names.
func TestUses(t *testing.T) {
	uses, err := Uses()
	require.NoError(t, err)
	require.Greater(t, len(uses), 30)
	for _, use := range uses {
		require.NotEmpty(t, use.Query.Selectors, "%s: %s", use.Location, use.Expr)
	}
	locations := make([]string, 0, len(uses))
	for _, use := range uses {
		locations = append(locations, use.Location)
	}
	require.Contains(t, locations, "dashboard, variable job")
	require.Contains(t, locations, `dashboard, panel "Open sharded watches"`)
	require.Contains(t, locations, "alert ShardplaneComponentDown")
}

// TestJobs checks that the scrape configuration contains the jobs in the expressions.
func TestJobs(t *testing.T) {
	jobs, err := Jobs()
	require.NoError(t, err)
	names := make([]string, 0, len(jobs))
	for _, job := range jobs {
		names = append(names, job.Name)
		require.Equal(t, "https", job.Scheme)
		require.NotEmpty(t, job.TLS.CAFile)
		require.NotEmpty(t, job.TLS.CertFile)
		require.NotEmpty(t, job.TLS.KeyFile)
		require.NotEmpty(t, job.Static)
	}
	require.Equal(t, []string{"shard", "front-proxy", "cache-server"}, names)

	uses, err := Uses()
	require.NoError(t, err)
	for _, use := range uses {
		for _, selector := range use.Query.Selectors {
			for _, matcher := range selector.Matchers {
				if matcher.Label == "job" && matcher.Op == "=" {
					require.Contains(t, names, matcher.Value, use.Location)
				}
			}
		}
	}
}

// TestDashboardLayout checks for mistakes that Grafana does not report: panels with the same ID, and overlapping panels.
func TestDashboardLayout(t *testing.T) {
	files, err := filepath.Glob("examples/*/dashboard.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range append(files, "grafana/shardplane.json") {
		t.Run(file, func(t *testing.T) { checkLayout(t, file) })
	}
}

func checkLayout(t *testing.T, file string) {
	t.Helper()
	content := harness.ReadFile(t, file)
	var dashboard struct {
		UID    string `json:"uid"`
		Panels []struct {
			ID    int    `json:"id"`
			Title string `json:"title"`
			Grid  struct {
				X, Y, W, H int
			} `json:"gridPos"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(content, &dashboard))
	require.NotEmpty(t, dashboard.UID)
	ids := make([]int, 0, len(dashboard.Panels))
	taken := map[[2]int]string{}
	for _, panel := range dashboard.Panels {
		require.NotContains(t, ids, panel.ID, panel.Title)
		ids = append(ids, panel.ID)
		require.LessOrEqual(t, panel.Grid.X+panel.Grid.W, 24, panel.Title)
		for x := range panel.Grid.W {
			for y := range panel.Grid.H {
				cell := [2]int{panel.Grid.X + x, panel.Grid.Y + y}
				require.Empty(t, taken[cell], "%s overlaps with another panel", panel.Title)
				taken[cell] = panel.Title
			}
		}
	}
}

const response = `# TYPE requests_total counter
requests_total{verb="GET",code="200"} 3
# TYPE latency_seconds histogram
latency_seconds_bucket{verb="GET",le="+Inf"} 3
latency_seconds_sum{verb="GET"} 1
latency_seconds_count{verb="GET"} 3
# TYPE pause_seconds summary
pause_seconds{quantile="0.5"} 1
pause_seconds_sum 1
pause_seconds_count 2
# TYPE size_bytes gauge
size_bytes 7
# TYPE unused_total counter
`

// TestMissing checks that only missing metrics and labels are reported.
func TestMissing(t *testing.T) {
	served := Served{}
	require.NoError(t, served.Add("shard", strings.NewReader(response)))
	require.NoError(t, served.Add("front-proxy", strings.NewReader("# TYPE proxied_total counter\nproxied_total{shard=\"root\"} 1\n")))
	for expr, want := range map[string]string{
		`rate(requests_total{verb="GET"}[5m])`:                                    "",
		`sum by (verb, le, job, instance) (latency_seconds_bucket)`:               "",
		`latency_seconds_sum / latency_seconds_count`:                             "",
		`pause_seconds{quantile="0.5"} + pause_seconds_count`:                     "",
		`size_bytes{job=~"sh.*|other", instance!="x"}`:                            "",
		`proxied_total{job=~"$job"} or up{job="none"}`:                            "",
		`size_bytes{job="front-proxy"}`:                                           "metric size_bytes is not served by [front-proxy]",
		`size_bytes{job!="shard"}`:                                                "metric size_bytes is not served by [front-proxy]",
		`size_bytes{job!~"shard|x"}`:                                              "metric size_bytes is not served by [front-proxy]",
		`request_total`:                                                           "metric request_total is not served by [front-proxy shard]",
		`latency_seconds`:                                                         "metric latency_seconds is not",
		`requests_total_bucket`:                                                   "metric requests_total_bucket is not",
		`unused_total`:                                                            "metric unused_total is not",
		`requests_total{status="200"}`:                                            "no series of requests_total has the label status",
		`requests_total{verb="WATCH"}`:                                            `no series of requests_total has verb="WATCH"`,
		`pause_seconds{quantile="0.99"}`:                                          `no series of pause_seconds has quantile="0.99"`,
		`requests_total{code=~"5..", verb!="WATCH"}`:                              "",
		`sum by (resource) (requests_total)`:                                      "groups by resource, but none of its series have the label",
		`requests_total{job=~"("}`:                                                "metric requests_total is not served by []",
		`sum by (code) (size_bytes) + on (code) group_left (verb) requests_total`: "",
	} {
		query, err := ParseQuery(expr)
		require.NoError(t, err)
		missing := served.Missing([]Use{{Location: "here", Expr: expr, Query: query}})
		if want == "" {
			require.Empty(t, missing, expr)
			continue
		}
		require.Len(t, missing, 1, expr)
		require.Contains(t, missing[0].String(), want, expr)
	}
	require.ErrorContains(t, served.Add("shard", strings.NewReader("{nonsense")), "parsing the metrics of shard")
}
