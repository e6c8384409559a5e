package measure_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/bench/measure"
)

func TestPercentiles(t *testing.T) {
	var recorder measure.Recorder
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() { recorder.Add(time.Duration(i+1) * time.Millisecond) })
	}
	wg.Wait()
	recorder.Fail(errors.New("first"))
	recorder.Fail(errors.New("second"))

	result := recorder.Rate("writes", "proxy", 2*time.Second)
	require.Equal(t, measure.Result{
		Name: "writes", Target: "proxy", Value: 50, Unit: "/s", Count: 100, Errors: 2,
		Latency: &measure.Latency{P50: 50, P90: 90, P99: 99, Max: 100},
	}, result)
	require.EqualError(t, recorder.FirstError(), "first")
	require.InDelta(t, 50, recorder.Median("writes", "proxy").Value, 0)
}

func TestNothingRecorded(t *testing.T) {
	var recorder measure.Recorder
	require.Nil(t, recorder.Rate("writes", "proxy", 0).Latency)
	require.Zero(t, recorder.Median("writes", "proxy").Value)
	require.NoError(t, recorder.FirstError())
}

func TestOneSample(t *testing.T) {
	var recorder measure.Recorder
	require.NoError(t, recorder.Time(func() error { return nil }))
	failure := errors.New("no")
	require.ErrorIs(t, recorder.Time(func() error { return failure }), failure)
	require.Equal(t, 1, recorder.Count())
	l := recorder.Rate("x", "y", time.Second).Latency
	require.InDelta(t, l.Max, l.P50, 0)
}

func TestReport(t *testing.T) {
	report := measure.Report{Machine: "a machine", Command: "bench all"}
	report.Add(
		measure.Result{Name: "reads", Target: "reference", Value: 200, Unit: "/s", Count: 10},
		measure.Result{Name: "reads", Target: "direct", Value: 150, Unit: "/s", Count: 10, Errors: 1},
		measure.Result{Name: "reads", Target: "direct", Value: 3, Unit: "ms"},
		measure.Result{Name: "start", Target: "direct", Value: 3.14159, Unit: "s", Note: "cold"},
	)
	report.Compare("reference")
	require.InDelta(t, 0.75, report.Results[1].Ratio, 1e-9)
	require.Zero(t, report.Results[0].Ratio, "the reference is not compared with itself")
	require.Zero(t, report.Results[2].Ratio, "units are not mixed")
	require.Equal(t, 1, report.Errors())

	var table strings.Builder
	require.NoError(t, report.WriteTable(&table))
	require.Contains(t, table.String(), "| 0.75 ")
	require.Contains(t, table.String(), "3.14 s")
	require.Len(t, strings.Split(strings.TrimSpace(table.String()), "\n"), 6)

	var text strings.Builder
	require.NoError(t, report.WriteJSON(&text))
	var back measure.Report
	require.NoError(t, json.Unmarshal([]byte(text.String()), &back))
	require.Equal(t, report, back)
}
