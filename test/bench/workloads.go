package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
	"github.com/shardplane/shardplane/test/bench/reference"
)

// targetFlags choose a server.
type targetFlags struct {
	name, kubeconfig, context string
	plain                     bool
}

func (f *targetFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.name, "name", "server", "what the results call the server")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the server (required)")
	fs.StringVar(&f.context, "context", "", "context of the kubeconfig; its current one if empty")
	fs.BoolVar(&f.plain, "plain", false, "the server has no logical clusters, as any other Kubernetes API server")
}

func (f *targetFlags) target() (load.Target, error) {
	if f.kubeconfig == "" {
		return load.Target{}, errors.New("--kubeconfig is required: for a development cluster, .kcp/admin.kubeconfig (front-proxy) or .kcp-0/admin.kubeconfig (root shard)")
	}
	return load.NewTarget(f.name, f.kubeconfig, f.context, !f.plain)
}

func newRequests() *workload {
	var from targetFlags
	var cluster string
	o := load.RequestOptions{}
	cmd := &cobra.Command{Use: "requests", Short: "Create, get, update and delete ConfigMaps one by one"}
	from.add(cmd.Flags())
	cmd.Flags().StringVar(&cluster, "cluster", "root", "logical cluster to work in, by name or path; it needs a namespace default")
	addRequestFlags(cmd.Flags(), &o)
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		target, err := from.target()
		if err != nil {
			return err
		}
		o.Run = newRun()
		results, err := load.Requests(ctx, target.In(cluster), o)
		report.Add(results...)
		return err
	}}
}

func addRequestFlags(fs *pflag.FlagSet, o *load.RequestOptions) {
	fs.IntVar(&o.Clients, "clients", 8, "clients that send one request after the other")
	fs.DurationVar(&o.Duration, "duration", 5*time.Second, "how long to create, to get, to update and at most to delete")
	fs.IntVar(&o.Size, "size", 512, "bytes of data in an object")
}

func newWorkspaces() *workload {
	var from targetFlags
	var parent string
	o := load.WorkspaceOptions{}
	cmd := &cobra.Command{Use: "workspaces", Short: "Create workspaces and wait until they are ready, then delete them"}
	from.add(cmd.Flags())
	cmd.Flags().StringVar(&parent, "parent", "root", "logical cluster to create them in, by name or path")
	addWorkspaceFlags(cmd.Flags(), &o)
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave the workspaces there")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		target, err := from.target()
		if err != nil {
			return err
		}
		o.Run = newRun()
		results, _, err := load.Workspaces(ctx, target.In(parent), o)
		report.Add(results...)
		return err
	}}
}

func addWorkspaceFlags(fs *pflag.FlagSet, o *load.WorkspaceOptions) {
	fs.IntVar(&o.Creators, "creators", 8, "how many create at a time")
	fs.IntVar(&o.Count, "workspaces", 400, "how many workspaces to create")
	fs.Float64Var(&o.Rate, "workspace-rate", 50, "workspaces to create per second; 0 means as fast as it goes")
	fs.DurationVar(&o.Timeout, "workspace-timeout", 2*time.Minute, "give up after this time")
}

// populationFlags say which objects lists and watches work on.
type populationFlags struct {
	targetFlags
	load.Population
}

func (f *populationFlags) add(fs *pflag.FlagSet) {
	f.targetFlags.add(fs)
	fs.StringSliceVar(&f.Clusters, "clusters", nil, "logical clusters of the shard to put objects in; all that are ready if empty. On a plain server, namespaces")
	addPopulationFlags(fs, &f.Population)
}

func addPopulationFlags(fs *pflag.FlagSet, p *load.Population) {
	fs.IntVar(&p.Objects, "objects", 10000, "how many ConfigMaps to list and watch")
	fs.IntVar(&p.Size, "object-size", 512, "bytes of data in each")
}

// with creates the objects, calls f and removes them.
func (f *populationFlags) with(ctx context.Context, measureIt func(load.Target, load.Population) error) error {
	target, err := f.target()
	if err != nil {
		return err
	}
	p := f.Population
	p.Run = newRun()
	if len(p.Clusters) == 0 {
		if f.plain {
			p.Clusters = []string{"default"}
		} else if p.Clusters, err = load.ReadyClusters(ctx, target); err != nil {
			return err
		}
		if len(p.Clusters) == 0 {
			return errors.New("no ready workspaces on the shard: create some with `bench workspaces --keep`, or name --clusters")
		}
	}
	return populated(ctx, target, p, measureIt)
}

// populated creates the objects, calls f and removes them, also after a failure
// and when the context has ended.
func populated(ctx context.Context, target load.Target, p load.Population, f func(load.Target, load.Population) error) error {
	progress("%s: creating %d objects in %d logical clusters", target.Name, p.Objects, len(p.Clusters))
	err := load.Populate(ctx, target, p)
	if err == nil {
		err = f(target, p)
	}
	clearing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(err, load.Clear(clearing, target, p))
}

func newLists() *workload {
	var from populationFlags
	o := load.ListOptions{}
	cmd := &cobra.Command{Use: "lists", Short: "List the objects of all logical clusters of a shard, whole and in pages"}
	from.add(cmd.Flags())
	addListFlags(cmd.Flags(), &o)
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		return from.with(ctx, func(target load.Target, p load.Population) error {
			results, err := load.Lists(ctx, target, p, o)
			report.Add(results...)
			return err
		})
	}}
}

func addListFlags(fs *pflag.FlagSet, o *load.ListOptions) {
	fs.IntVar(&o.Repeat, "repeat", 9, "how often to read each list")
	fs.Int64Var(&o.PageSize, "page-size", 500, "objects per page of the lists in pages")
	fs.DurationVar(&o.Timeout, "list-timeout", 2*time.Minute, "give up after this time")
}

func newWatches() *workload {
	var from populationFlags
	o := load.WatchOptions{}
	cmd := &cobra.Command{Use: "watches", Short: "Update objects under open watches over all logical clusters of a shard"}
	from.add(cmd.Flags())
	addWatchFlags(cmd.Flags(), &o)
	cmd.Flags().BoolVar(&o.Sharded, "sharded", true, "divide the objects among the watches by shardSelector")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		return from.with(ctx, func(target load.Target, p load.Population) error {
			results, err := load.Watches(ctx, target, p, o)
			report.Add(results...)
			return err
		})
	}}
}

func addWatchFlags(fs *pflag.FlagSet, o *load.WatchOptions) {
	fs.IntVar(&o.Watchers, "watchers", 64, "how many watches")
	fs.Float64Var(&o.Rate, "update-rate", 200, "updates per second")
	fs.DurationVar(&o.Duration, "watch-duration", 10*time.Second, "how long to update")
	fs.DurationVar(&o.Late, "settle", 10*time.Second, "how long the last events may take")
}

func newStartup() *workload {
	var binary string
	var shards, runs int
	cmd := &cobra.Command{Use: "startup", Short: "Start development clusters, fresh and with data, and measure the time until they are ready"}
	addClusterFlags(cmd.Flags(), &binary, &shards)
	cmd.Flags().IntVar(&runs, "runs", 3, "how many clusters to start")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		return measureStartup(ctx, report, binary, shards, runs)
	}}
}

func addClusterFlags(fs *pflag.FlagSet, binary *string, shards *int) {
	fs.StringVar(binary, "binary", "bin/shardplane", "the shardplane program to start clusters with; make build builds it")
	fs.IntVar(shards, "shards", 2, "shards of a cluster")
}

func newMemory() *workload {
	var pid int
	cmd := &cobra.Command{Use: "memory", Short: "Read the memory of a process and its children"}
	cmd.Flags().IntVar(&pid, "pid", 0, "the process, such as that of shardplane dev (required)")
	return &workload{Command: cmd, run: func(_ context.Context, report *measure.Report) error {
		if pid <= 0 {
			return errors.New("--pid is required: for a development cluster, that of `shardplane dev`")
		}
		tree, err := process.Tree(pid)
		if err != nil {
			return err
		}
		report.Add(memoryResults("memory", "all processes", tree)...)
		return nil
	}}
}

// memoryResults returns the sum of all processes and, where there are several,
// one result per process.
func memoryResults(name, target string, tree []process.Memory) []measure.Result {
	var results []measure.Result
	var resident, proportional int64
	for _, m := range tree {
		resident += m.Resident
		proportional += m.Proportional
		results = append(results, measure.Result{Name: name + ", of it", Target: m.Command, Value: mebibytes(m.Resident), Unit: "MiB"})
	}
	if len(tree) == 1 {
		results = nil
	}
	return append(results, measure.Result{
		Name: name, Target: target, Value: mebibytes(resident), Unit: "MiB", Count: len(tree),
		Note: fmt.Sprintf("resident; %.0f MiB with shared pages counted once", mebibytes(proportional)),
	})
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func newReference() *cobra.Command {
	o := reference.Options{}
	cmd := &cobra.Command{
		Use:   "reference",
		Short: "Serve the plain API server that Shardplane is compared with, until interrupted",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory for its data, certificates and kubeconfig (required)")
	cmd.Flags().IntVar(&o.Port, "port", 0, "port on 127.0.0.1; 0 takes any free one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Dir == "" {
			return errors.New("--dir is required")
		}
		o.Ready = func(kubeconfig string) { progress("ready: kubectl --kubeconfig %s get namespaces", kubeconfig) }
		return reference.Run(cmd.Context(), o)
	}
	return cmd
}
