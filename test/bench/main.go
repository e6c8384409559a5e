// Command bench measures Shardplane, or any other Kubernetes API server, through its public API.
//
//	go run ./test/bench all --binary bin/shardplane    a plain API server, then a development cluster
//	go run ./test/bench server --kubeconfig FILE       a running server
//
// It prints one table. docs/benchmarks.md explains the workloads and contains results. The package
// reference is the plain API server.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/test/bench/reference"
)

func main() {
	if !slices.Contains(os.Args, "reference") {
		// The end of a phase interrupts requests, which client-go logs as errors.
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

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure an API server through its public API",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newAll(), newServer(), newReference())
	return root
}

// workloads are all workloads in the order of their execution. The first two measure memory, which
// the others increase.
var workloads = []string{"idle", "workspaces", "writes", "gets", "lists"}

// options specify the workloads.
type options struct {
	workloads []string
	// A list contains objects of size bytes in several logical clusters, and is repeated.
	objects, size, clusters, repeat int
	pageSize                        int64
	// writers and readers are clients that send sequential requests for duration.
	writers, readers int
	duration         time.Duration
	// creators is the number of clients that create workspaces.
	workspaces, creators int
	// quietPeriod is the time between a change and the measurement of memory, and idle the time in
	// which the CPU time of idle servers is measured.
	quietPeriod, idle time.Duration
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.workloads, "workloads", workloads, "workloads to run")
	fs.IntVar(&o.objects, "objects", 16000, "number of ConfigMaps to list")
	fs.IntVar(&o.size, "object-size", 600, "bytes of data in a ConfigMap; 600 make an object of about 1 KB")
	fs.IntVar(&o.clusters, "clusters", 20, "number of logical clusters with these ConfigMaps")
	fs.IntVar(&o.repeat, "repeat", 9, "number of lists of each kind")
	fs.Int64Var(&o.pageSize, "page-size", 500, "limit of the paginated lists")
	fs.IntVar(&o.writers, "writers", 32, "number of clients that write")
	fs.IntVar(&o.readers, "readers", 16, "number of clients that read")
	fs.DurationVar(&o.duration, "duration", 10*time.Second, "duration of the writes and of the reads at each server")
	fs.IntVar(&o.workspaces, "workspaces", 1000, "number of workspaces to create and delete")
	fs.IntVar(&o.creators, "creators", 8, "number of clients that create workspaces")
	fs.DurationVar(&o.quietPeriod, "quiet-period", 20*time.Second, "time between a change and the measurement of memory")
	fs.DurationVar(&o.idle, "idle", 30*time.Second, "time in which the CPU usage of idle servers is measured")
}

func (o *options) validate() error {
	for _, workload := range o.workloads {
		if !slices.Contains(workloads, workload) {
			return fmt.Errorf("--workloads: unknown workload %q, must be one of %v", workload, workloads)
		}
	}
	if min(o.objects, o.clusters, o.repeat, int(o.pageSize), o.writers, o.readers, o.workspaces, o.creators) < 1 || min(o.duration, o.idle) <= 0 {
		return errors.New("numbers and durations must be positive")
	}
	return nil
}

// measure runs the workloads against a server and adds their results to its column of the report.
func (o *options) measure(ctx context.Context, to *column, s server) error {
	for _, workload := range workloads {
		if !slices.Contains(o.workloads, workload) {
			continue
		}
		progress("%s: %s", to.name, workload)
		run := map[string]func(context.Context, *column, server) error{
			"idle": o.measureIdle, "workspaces": o.measureWorkspaces, "writes": o.measureWrites, "gets": o.measureGets, "lists": o.measureLists,
		}[workload]
		if err := run(ctx, to, s); err != nil {
			return fmt.Errorf("%s at %s: %w", workload, to.name, err)
		}
	}
	return nil
}

func newServer() *cobra.Command {
	o := options{}
	var name, kubeconfig, kubeContext, proxy string
	var plain bool
	s := server{}
	cmd := &cobra.Command{Use: "server", Short: "Run the workloads against a running server", Args: cobra.NoArgs}
	fs := cmd.Flags()
	fs.StringVar(&name, "name", "server", "name of the server in the table")
	fs.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the server, which must be a shard for all workloads with logical clusters (required)")
	fs.StringVar(&proxy, "front-proxy-kubeconfig", "", "kubeconfig of its front-proxy, if it has one")
	fs.StringVar(&kubeContext, "context", "", "context in both kubeconfigs; the current one by default")
	fs.BoolVar(&plain, "plain", false, "the server has no logical clusters")
	fs.IntVar(&s.pid, "pid", 0, "process ID of the server for the measurement of CPU and memory, including child processes; 0 skips the workload idle")
	o.addFlags(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if kubeconfig == "" {
			return errors.New("--kubeconfig is required: for a development cluster, .kcp-0/admin.kubeconfig")
		}
		if err := o.validate(); err != nil {
			return err
		}
		if s.direct, err = newTarget(kubeconfig, kubeContext, !plain); err != nil {
			return err
		}
		if proxy != "" {
			target, err := newTarget(proxy, kubeContext, true)
			if err != nil {
				return err
			}
			s.proxy = &target
		}
		table := &report{}
		return errors.Join(o.measure(cmd.Context(), table.column(name), s), table.print(cmd.OutOrStdout()))
	}
	return cmd
}

func newReference() *cobra.Command {
	o := reference.Options{}
	cmd := &cobra.Command{Use: "reference", Short: "Run the plain API server with which Shardplane is compared, until interrupted", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory for its data, certificates and kubeconfig (required)")
	cmd.Flags().IntVar(&o.Port, "port", 0, "port on 127.0.0.1; 0 selects a free port")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Dir == "" {
			return errors.New("--dir is required")
		}
		o.Ready = func(kubeconfig string) { progress("ready: kubectl --kubeconfig %s get namespaces", kubeconfig) }
		return reference.Run(cmd.Context(), o)
	}
	return cmd
}

// progress logs to standard error.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
