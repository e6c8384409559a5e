package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
)

// report is a table with a row for each measured quantity and a column for each server.
type report struct {
	rows    []*row
	columns []string
}

type row struct {
	work, unit string
	// values and notes are by column.
	values map[string]float64
	notes  map[string]string
}

// column adds results to one column of a report.
type column struct {
	report *report
	name   string
}

func (r *report) column(name string) *column {
	r.columns = append(r.columns, name)
	return &column{report: r, name: name}
}

// add sets the value of this column in the row of the quantity.
func (c *column) add(work, unit string, value float64, note string) {
	var to *row
	for _, existing := range c.report.rows {
		if existing.work == work && existing.unit == unit {
			to = existing
		}
	}
	if to == nil {
		to = &row{work: work, unit: unit, values: map[string]float64{}, notes: map[string]string{}}
		c.report.rows = append(c.report.rows, to)
	}
	to.values[c.name], to.notes[c.name] = value, note
}

// print prints the table as Markdown. The ratio compares the last column with the reference.
func (r *report) print(w io.Writer) error {
	if len(r.rows) == 0 {
		return nil
	}
	fmt.Fprintf(w, "%s\nbench %s\n\n", machine(), strings.Join(os.Args[1:], " "))
	last := r.columns[len(r.columns)-1]
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	line := func(cells ...string) { fmt.Fprintf(table, "| %s |\n", strings.Join(cells, "\t| ")) }
	header := append(append([]string{"work"}, r.columns...), "ratio", "unit", "note")
	line(header...)
	line(strings.Split(strings.Repeat("--- ", len(header)-1)+"---", " ")...)
	for _, row := range r.rows {
		cells := []string{row.work}
		for _, column := range r.columns {
			cell := ""
			if value, ok := row.values[column]; ok {
				cell = number(value)
			}
			cells = append(cells, cell)
		}
		ratio := ""
		if base := row.values[referenceColumn]; base > 0 && last != referenceColumn && row.values[last] > 0 {
			ratio = number(row.values[last] / base)
		}
		line(append(cells, ratio, row.unit, row.notes[last])...)
	}
	return table.Flush()
}

// machine describes the machine on which the program runs.
func machine() string {
	description := fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value) + ", " + description
			}
		}
	}
	return description
}

// number formats three significant digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
}
