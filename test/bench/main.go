// Command bench measures Shardplane, or any other Kubernetes API server,
// through its public API.
//
//	go run ./test/bench all --binary bin/shardplane       a cluster of its own against a plain API server
//	go run ./test/bench requests --kubeconfig FILE        one workload against any server
//
// Each subcommand ends by itself and prints a table; --json writes the same as
// JSON. Measured results are in docs/benchmarks.md.
//
//	load       the workloads
//	measure    how long operations take, as tables and JSON
//	process    the programs that are measured, as child processes
//	shardsim   many shards in one process, for what follows them
//	reference  the plain API server, and the plain reverse proxy, that Shardplane is compared with
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/test/bench/measure"
)

func main() {
	if !slices.Contains(os.Args, "reference") {
		// Client libraries log what a deadline cuts off, which is how phases end.
		klog.SetLogger(logr.Discard())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// newCommand assembles the command line.
func newCommand() *cobra.Command {
	var jsonFile string
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure an API server through its public API",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&jsonFile, "json", "", "also write the results to this file as JSON")
	for _, workload := range []*workload{
		newAll(), newStartup(), newWorkspaces(), newRequests(), newLists(), newWatches(), newFairness(), newBindings(), newViews(), newClaims(), newScale(), newGarbage(), newIndex(), newHops(), newRing(), newReplicas(), newCached(), newRestart(), newMemory(), newIdle(),
	} {
		root.AddCommand(workload.command(&jsonFile))
	}
	root.AddCommand(newReference(), newReferenceProxy(), newFlood(), newSpread(), newReplica())
	return root
}

// workload is a subcommand that reports results.
type workload struct {
	*cobra.Command
	// run measures and adds what it has measured to the report, also when it
	// fails in the end.
	run func(ctx context.Context, report *measure.Report) error
}

// command returns the cobra command that runs the workload and prints.
func (w *workload) command(jsonFile *string) *cobra.Command {
	w.Args = cobra.NoArgs
	w.RunE = func(cmd *cobra.Command, _ []string) error {
		report := &measure.Report{Machine: machine(), Command: "bench " + strings.Join(os.Args[1:], " ")}
		err := w.run(cmd.Context(), report)
		return errors.Join(err, write(cmd, report, *jsonFile))
	}
	return w.Command
}

// write prints the report; failed operations make the run fail.
func write(cmd *cobra.Command, report *measure.Report, jsonFile string) error {
	if len(report.Results) == 0 {
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n\n", report.Machine, report.Command)
	if err := report.WriteTable(cmd.OutOrStdout()); err != nil {
		return fmt.Errorf("printing the results: %w", err)
	}
	if jsonFile != "" {
		file, err := os.Create(jsonFile)
		if err != nil {
			return fmt.Errorf("writing the results: %w", err)
		}
		if err := errors.Join(report.WriteJSON(file), file.Close()); err != nil {
			return fmt.Errorf("writing the results: %w", err)
		}
	}
	if failed := report.Errors(); failed > 0 {
		return fmt.Errorf("%d operations failed", failed)
	}
	return nil
}

// machine says what the numbers were measured on.
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

// newRun returns a name that tells this run's objects from those of others.
func newRun() string { return rand.String(5) }

// progress tells people on stderr what is going on.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
