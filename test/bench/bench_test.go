package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
	"github.com/shardplane/shardplane/test/bench/reference"
)

// TestMain lets the test's program be the one that a flood runs in.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "flood" {
		main()
		return
	}
	os.Exit(m.Run())
}

// startReference runs the reference server in this process and returns its
// kubeconfig.
func startReference(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- reference.Run(ctx, reference.Options{Dir: t.TempDir(), Ready: func(kubeconfig string) { ready <- kubeconfig }})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	select {
	case kubeconfig := <-ready:
		return kubeconfig
	case err := <-done:
		done <- err
		require.NoError(t, err, "the reference server ended")
	case <-time.After(time.Minute):
		require.Fail(t, "the reference server is not ready")
	}
	return ""
}

// runCommand runs the command line and returns what it wrote as JSON.
func runCommand(t *testing.T, args ...string) (measure.Report, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "results.json")
	cmd := newCommand()
	cmd.SetOut(io.Discard)
	cmd.SetArgs(append(args, "--json", file))
	err := cmd.ExecuteContext(t.Context())
	var report measure.Report
	content, readErr := os.ReadFile(file)
	if readErr == nil {
		require.NoError(t, json.Unmarshal(content, &report))
	}
	return report, err
}

// TestWorkloads runs every workload that a plain server can serve, small.
func TestWorkloads(t *testing.T) {
	kubeconfig := startReference(t)
	plain := []string{"--plain", "--name", "reference", "--kubeconfig", kubeconfig}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{
			[]string{"requests", "--duration", "300ms", "--clients", "2"},
			[]string{"create ConfigMap", "get ConfigMap", "update ConfigMap", "delete ConfigMap"},
		},
		{
			[]string{"lists", "--objects", "25", "--page-size", "4", "--repeat", "2", "--clusters", "one,two"},
			[]string{"list all, consistent", "list all, from cache", "list all, pages of 4", "list all, by label", "list one cluster's"},
		},
		{
			[]string{"watches", "--objects", "20", "--watchers", "3", "--watch-duration", "500ms", "--update-rate", "40"},
			[]string{"event at 3 sharded watches", "update under 3 sharded watches"},
		},
		{
			[]string{"fairness", "--quiet", "one", "--noisy", "two", "--clients", "3", "--rounds", "2", "--duration", "200ms"},
			[]string{"quiet tenant, alone", "quiet tenant, beside a flood", "flood from 3 clients"},
		},
		{
			[]string{"watches", "--objects", "20", "--watchers", "3", "--watch-duration", "500ms", "--update-rate", "40", "--sharded=false"},
			[]string{"event at 3 watches", "update under 3 watches"},
		},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			report, err := runCommand(t, append(test.args, plain...)...)
			require.NoError(t, err)
			names := make([]string, 0, len(report.Results))
			for _, result := range report.Results {
				names = append(names, result.Name)
				require.Equal(t, "reference", result.Target)
				require.Positive(t, result.Value, result.Name)
				require.Positive(t, result.Count, result.Name)
				require.Zero(t, result.Errors, result.Note)
			}
			require.Equal(t, test.want, names)
		})
	}
}

func TestMemory(t *testing.T) {
	report, err := runCommand(t, "memory", "--pid", strconv.Itoa(os.Getpid()))
	require.NoError(t, err)
	require.NotEmpty(t, report.Results)
	require.Equal(t, "all processes", report.Results[len(report.Results)-1].Target)
}

func TestIdle(t *testing.T) {
	report, err := runCommand(t, "idle", "--pid", strconv.Itoa(os.Getpid()), "--duration", "1ms")
	require.NoError(t, err)
	require.NotEmpty(t, report.Results)
	require.Equal(t, "all processes", report.Results[len(report.Results)-1].Target)

	before := []process.Memory{{PID: 1, Processor: time.Second, Wakeups: 10}, {PID: 2, Processor: time.Second}}
	after := []process.Memory{{PID: 1, Processor: 2 * time.Second, Wakeups: 30}, {PID: 2, Processor: time.Second}, {PID: 3, Processor: time.Hour}}
	results := idleResults(before, after, 10*time.Second)
	require.Len(t, results, 3, "what was not there before does not count")
	require.InDelta(t, 100, results[2].Value, 1e-9)
	require.Equal(t, "2 wake-ups/s", results[2].Note)
}

// TestMistakes checks that a person is told what to do.
func TestMistakes(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"requests"}, "--kubeconfig is required"},
		{[]string{"requests", "--kubeconfig", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"memory"}, "--pid is required"},
		{[]string{"idle"}, "--pid is required"},
		{[]string{"fairness", "--noisy", "one"}, "give both or none"},
		{[]string{"reference"}, "--dir is required"},
		{[]string{"startup", "--binary", "/does/not/exist"}, "starting /does/not/exist"},
		{[]string{"bindings", "--binary", "/does/not/exist"}, "starting /does/not/exist"},
		{[]string{"scale", "--workspaces", "10", "--exports", "11"}, "--exports=11: there are as many as --workspaces=10 at most"},
		{[]string{"scale", "--exports", "-1"}, "--exports=-1"},
		{[]string{"ring", "--rounds", "0"}, "must be above 0"},
		{[]string{"replicas", "--rate", "0"}, "must be above 0"},
		{[]string{"cached", "--kinds", "0"}, "must be above 0"},
		{[]string{"restart", "--rounds", "0"}, "must be above 0"},
		{[]string{"lists", "everything"}, "unknown command"},
		{[]string{"everything"}, "unknown command"},
	} {
		_, err := runCommand(t, test.args...)
		require.ErrorContains(t, err, test.want, test.args)
	}
}
