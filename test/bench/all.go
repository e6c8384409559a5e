package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// referenceName is the target that others are compared with.
const referenceName = "reference"

// allOptions are those of all workloads together.
type allOptions struct {
	binary       string
	shards, runs int
	spread       int
	verbose      bool
	requests     load.RequestOptions
	workspaces   load.WorkspaceOptions
	population   load.Population
	lists        load.ListOptions
	watches      load.WatchOptions
	idle         time.Duration
}

func newAll() *workload {
	o := allOptions{}
	cmd := &cobra.Command{Use: "all", Short: "Start a cluster and the reference server and run every workload against both"}
	fs := cmd.Flags()
	addClusterFlags(fs, &o.binary, &o.shards)
	fs.IntVar(&o.runs, "runs", 3, "how many clusters to start for the time of a start")
	fs.IntVar(&o.spread, "spread", 20, "logical clusters that hold the objects of lists and watches")
	fs.BoolVar(&o.verbose, "verbose", false, "show what the servers print")
	fs.DurationVar(&o.idle, "idle", 10*time.Second, "how long to leave the cluster alone before its memory is read")
	addRequestFlags(fs, &o.requests)
	addWorkspaceFlags(fs, &o.workspaces)
	addPopulationFlags(fs, &o.population)
	addListFlags(fs, &o.lists)
	addWatchFlags(fs, &o.watches)
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		defer report.Compare(referenceName)
		if err := measureStartup(ctx, report, o.binary, o.shards, o.runs); err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "shardplane-bench-")
		if err != nil {
			return fmt.Errorf("making a directory for the servers: %w", err)
		}
		return errors.Join(o.run(ctx, report, dir), os.RemoveAll(dir))
	}}
}

// output is where servers print to.
func (o *allOptions) output() io.Writer {
	if o.verbose {
		return os.Stderr
	}
	return io.Discard
}

// run measures the reference first and stops it, so that the two never share
// the cores.
func (o *allOptions) run(ctx context.Context, report *measure.Report, dir string) error {
	if err := o.measureReference(ctx, report, filepath.Join(dir, "reference")); err != nil {
		return fmt.Errorf("measuring the reference: %w", err)
	}
	progress("starting a cluster with %d shards", o.shards)
	cluster, _, err := process.StartCluster(ctx, process.ClusterOptions{
		Binary: o.binary, Dir: filepath.Join(dir, "cluster"), Shards: o.shards, Out: o.output(),
	})
	if err != nil {
		return err
	}
	err = o.measureCluster(ctx, report, cluster)
	return errors.Join(err, cluster.Stop())
}

func (o *allOptions) measureReference(ctx context.Context, report *measure.Report, dir string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	progress("starting the reference server")
	server, err := process.Start(ctx, o.output(), self, "reference", "--dir", dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(30*time.Second)) }()
	kubeconfig := filepath.Join(dir, "reference.kubeconfig")
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := server.WaitForFile(starting, kubeconfig, false); err != nil {
		return err
	}
	target, err := load.NewTarget(referenceName, kubeconfig, "", false)
	if err != nil {
		return err
	}
	if err := o.memory(ctx, report, "memory, idle", referenceName, server); err != nil {
		return err
	}
	if err := o.measureRequests(ctx, report, target); err != nil {
		return err
	}
	namespaces := make([]string, o.spread)
	for i := range namespaces {
		namespaces[i] = fmt.Sprintf("bench-%d", i)
	}
	return o.measureObjects(ctx, report, target, namespaces)
}

func (o *allOptions) measureCluster(ctx context.Context, report *measure.Report, cluster *process.Cluster) error {
	proxy, err := load.NewTarget("proxy", cluster.ProxyKubeconfig(), "base", true)
	if err != nil {
		return err
	}
	direct, err := load.NewTarget("direct", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	if err := o.memory(ctx, report, "memory, idle", "cluster", cluster.Process); err != nil {
		return err
	}
	progress("creating %d workspaces", o.workspaces.Count)
	o.workspaces.Run, o.workspaces.Keep = newRun(), true
	results, _, err := load.Workspaces(ctx, proxy.In("root"), o.workspaces)
	report.Add(results...)
	if err != nil {
		return err
	}
	if err := o.memory(ctx, report, fmt.Sprintf("memory, %d workspaces", o.workspaces.Count), "cluster", cluster.Process); err != nil {
		return err
	}
	for _, target := range []load.Target{proxy, direct} {
		if err := o.measureRequests(ctx, report, target.In("root")); err != nil {
			return err
		}
	}
	clusters, err := load.ReadyClusters(ctx, direct)
	if err != nil {
		return err
	}
	if len(clusters) == 0 {
		return errors.New("no workspace was scheduled to the root shard: ask for more --workspaces")
	}
	return o.measureObjects(ctx, report, direct, clusters[:min(o.spread, len(clusters))])
}

func (o *allOptions) measureRequests(ctx context.Context, report *measure.Report, target load.Target) error {
	progress("%s: requests", target.Name)
	o.requests.Run = newRun()
	results, err := load.Requests(ctx, target, o.requests)
	report.Add(results...)
	return err
}

// measureObjects runs the workloads that work on many objects.
func (o *allOptions) measureObjects(ctx context.Context, report *measure.Report, target load.Target, clusters []string) error {
	p := o.population
	p.Run, p.Clusters = newRun(), clusters
	return populated(ctx, target, p, func(target load.Target, p load.Population) error {
		progress("%s: lists", target.Name)
		results, err := load.Lists(ctx, target, p, o.lists)
		report.Add(results...)
		if err != nil {
			return err
		}
		for _, sharded := range []bool{false, true} {
			progress("%s: %d watches, sharded: %t", target.Name, o.watches.Watchers, sharded)
			watches := o.watches
			watches.Sharded = sharded
			results, err := load.Watches(ctx, target, p, watches)
			report.Add(results...)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// memory reads the memory of a process tree that has been left alone.
func (o *allOptions) memory(ctx context.Context, report *measure.Report, name, target string, p *process.Process) error {
	timer := time.NewTimer(o.idle)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	tree, err := process.Tree(p.PID())
	if err != nil {
		return err
	}
	report.Add(memoryResults(name, target, tree)...)
	return nil
}

// measureStartup starts clusters in new directories and again in the same ones.
func measureStartup(ctx context.Context, report *measure.Report, binary string, shards, runs int) error {
	var fresh, again, stops measure.Recorder
	for i := range runs {
		progress("start %d of %d", i+1, runs)
		dir, err := os.MkdirTemp("", "shardplane-bench-")
		if err != nil {
			return fmt.Errorf("making a directory for the cluster: %w", err)
		}
		for _, recorder := range []*measure.Recorder{&fresh, &again} {
			if err = startOnce(ctx, process.ClusterOptions{Binary: binary, Dir: dir, Shards: shards, Out: io.Discard}, recorder, &stops); err != nil {
				break
			}
		}
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	target := fmt.Sprintf("%d shards", shards)
	report.Add(fresh.Median("start, fresh", target), again.Median("start, with data", target), stops.Median("stop", target))
	return nil
}

func startOnce(ctx context.Context, o process.ClusterOptions, starts, stops *measure.Recorder) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cluster, took, err := process.StartCluster(ctx, o)
	if err != nil {
		return err
	}
	starts.Add(took)
	return stops.Time(cluster.Stop)
}
