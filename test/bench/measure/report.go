package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Result is one line of a report.
type Result struct {
	// Name says what was measured; results of different targets with the same
	// name are compared.
	Name string `json:"name"`
	// Target says of whom.
	Target string  `json:"target"`
	Value  float64 `json:"value"`
	// Unit is of Value: /s, ms, s, MiB or KiB.
	Unit    string   `json:"unit"`
	Count   int      `json:"count,omitempty"`
	Errors  int      `json:"errors,omitempty"`
	Latency *Latency `json:"latencyMilliseconds,omitempty"`
	// Ratio is Value divided by the reference's; 0 where there is none.
	Ratio float64 `json:"ratio,omitempty"`
	// Note says what else one has to know.
	Note string `json:"note,omitempty"`
}

// Report is what a run measured.
type Report struct {
	// Machine and Command say where and how, so that the run can be repeated.
	Machine string   `json:"machine"`
	Command string   `json:"command"`
	Results []Result `json:"results"`
}

// Add appends results.
func (r *Report) Add(results ...Result) { r.Results = append(r.Results, results...) }

// Compare sets the ratios of all results against those of the target named
// reference that have the same name and unit.
func (r *Report) Compare(reference string) {
	base := map[string]float64{}
	for _, result := range r.Results {
		if result.Target == reference {
			base[result.Name+" "+result.Unit] = result.Value
		}
	}
	for i := range r.Results {
		result := &r.Results[i]
		if against := base[result.Name+" "+result.Unit]; against > 0 && result.Target != reference {
			result.Ratio = result.Value / against
		}
	}
}

// Errors returns how many operations failed.
func (r *Report) Errors() int {
	errors := 0
	for _, result := range r.Results {
		errors += result.Errors
	}
	return errors
}

// WriteTable prints the results for people, as a table that is also Markdown.
func (r *Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	row := func(cells ...string) {
		// An error of the writer shows in Flush.
		_, _ = fmt.Fprintf(table, "| %s |\n", strings.Join(cells, "\t| "))
	}
	row("what", "target", "value", "p50 ms", "p90 ms", "p99 ms", "max ms", "count", "errors", "ratio", "note")
	row("---", "---", "---", "---", "---", "---", "---", "---", "---", "---", "---")
	for _, result := range r.Results {
		p50, p90, p99, slowest := "", "", "", ""
		if l := result.Latency; l != nil {
			p50, p90, p99, slowest = number(l.P50), number(l.P90), number(l.P99), number(l.Max)
		}
		ratio := ""
		if result.Ratio > 0 {
			ratio = number(result.Ratio)
		}
		row(result.Name, result.Target, number(result.Value)+" "+result.Unit, p50, p90, p99, slowest,
			strconv.Itoa(result.Count), strconv.Itoa(result.Errors), ratio, result.Note)
	}
	return table.Flush()
}

// WriteJSON prints the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// number prints three significant digits, which is more than a run on a busy
// machine is good for.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
