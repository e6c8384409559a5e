package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newScale measures what a shard takes that has much.
func newScale() *workload {
	o := scaleRun{}
	cmd := &cobra.Command{Use: "scale", Short: "Start a cluster with many workspaces, exports and bindings, and measure what its shard takes then"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.workspaces, "workspaces", 10000, "workspaces to create; those without an export have a binding")
	fs.IntVar(&o.Exports, "exports", 500, "exports, each of an API of its own; with none there are no bindings")
	fs.IntVar(&o.Objects, "objects", 1, "objects of what it has bound, of each binding")
	fs.IntVar(&o.Creators, "creators", 8, "how many create at a time")
	fs.DurationVar(&o.quietBefore, "settle", 11*time.Minute, "how long the shard is left alone before it is measured: etcd is compacted every five minutes, to what it was five minutes before")
	fs.DurationVar(&o.idle, "duration", time.Minute, "how long its processor is measured that is left alone")
	fs.DurationVar(&o.timeout, "timeout", 2*time.Hour, "give up after this time")
	fs.StringVar(&o.profile, "profile", "", "file for a profile of the shard's heap")
	fs.StringVar(&o.processorProfile, "processor-profile", "", "file for a profile of the shard's processor while it is left alone, of --duration; garbage is collected every two minutes at least, and etcd compacted every five")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if o.Exports < 0 || o.Exports > o.workspaces {
			return fmt.Errorf("--exports=%d: there are as many as --workspaces=%d at most, and 0 at least", o.Exports, o.workspaces)
		}
		return inCluster(ctx, o.binary, o.timeout, func(ctx context.Context, cluster *process.Cluster) error { return o.measure(ctx, cluster, report) })
	}}
}

type scaleRun struct {
	load.Scale

	binary, profile, processorProfile string
	workspaces                        int
	quietBefore, idle, timeout        time.Duration
}

func (o *scaleRun) measure(ctx context.Context, cluster *process.Cluster, report *measure.Report) error {
	shard, err := load.NewTarget("shard", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	proxy, err := load.NewTarget("proxy", cluster.ProxyKubeconfig(), "base", true)
	if err != nil {
		return err
	}
	if err := o.memory(ctx, cluster, shard, report, "new"); err != nil {
		return err
	}
	progress("creating %d workspaces", o.workspaces)
	results, clusters, err := load.Workspaces(ctx, proxy.In("root"), load.WorkspaceOptions{
		Creators: o.Creators, Count: o.workspaces, Timeout: o.timeout, Keep: true, Run: newRun(),
	})
	report.Add(results...)
	if err != nil {
		return err
	}
	o.Clusters = clusters
	results, err = o.Make(ctx, shard, progress)
	report.Add(results...)
	if err != nil {
		return err
	}
	if err := o.memory(ctx, cluster, shard, report, "at once"); err != nil {
		return err
	}
	if err := o.wait(ctx, cluster, o.quietBefore); err != nil {
		return err
	}
	return o.quiet(ctx, cluster, shard, report)
}

// wait leaves the cluster alone, and tells what the shard takes meanwhile.
func (o *scaleRun) wait(ctx context.Context, cluster *process.Cluster, d time.Duration) error {
	const tellEvery = time.Minute
	for end := time.Now().Add(d); time.Now().Before(end); {
		p, err := shardOf(cluster)
		if err != nil {
			return err
		}
		progress("the shard has %.0f MiB resident, and is left alone until %s", mebibytes(p.Resident), end.Format(time.TimeOnly))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(tellEvery, time.Until(end))):
		}
	}
	return nil
}

// quiet measures the shard's processor and memory.
func (o *scaleRun) quiet(ctx context.Context, cluster *process.Cluster, shard load.Target, report *measure.Report) error {
	collector, err := load.ReadCollector(ctx, shard)
	if err != nil {
		return err
	}
	before, err := process.Tree(cluster.PID())
	if err != nil {
		return err
	}
	began := time.Now()
	profiled := profileTo(ctx, o.processorProfile, shard, o.idle)
	if err := o.wait(ctx, cluster, o.idle); err != nil {
		return err
	}
	after, err := process.Tree(cluster.PID())
	if err != nil {
		return err
	}
	took := time.Since(began)
	report.Add(idleResults(before, after, took)...)
	if err := <-profiled; err != nil {
		return fmt.Errorf("profiling the shard: %w", err)
	}
	collectorAfter, err := load.ReadCollector(ctx, shard)
	if err != nil {
		return err
	}
	report.Add(collectorResult(collectorAfter.Since(collector), took))
	return o.memory(ctx, cluster, shard, report, "after compaction and quiet")
}

// collectorResult is what of the time in which a shard was left alone its collector of garbage took.
func collectorResult(c load.Collector, took time.Duration) measure.Result {
	return measure.Result{
		Name: "idle, of that the collection of garbage", Target: "shard", Value: 1000 * c.Processor.Seconds() / took.Seconds(), Unit: "millicores",
		Note: fmt.Sprintf("%d collections, %.1f millicores to return memory, %.0f KiB/s allocated",
			c.Collections, 1000*c.Returning.Seconds()/took.Seconds(), float64(c.Allocated)/(1<<10)/took.Seconds()),
	}
}

// memory reports what the shard's process takes: what is resident as it was left, and then
// what the heap holds.
func (o *scaleRun) memory(ctx context.Context, cluster *process.Cluster, shard load.Target, report *measure.Report, when string) error {
	p, err := shardOf(cluster)
	if err != nil {
		return err
	}
	counters, err := load.ReadCounters(ctx, shard)
	if err != nil {
		return err
	}
	if o.profile != "" {
		if err := os.WriteFile(o.profile, counters.HeapProfile, 0o600); err != nil {
			return fmt.Errorf("writing a profile: %w", err)
		}
	}
	tree, err := process.Tree(cluster.PID())
	if err != nil {
		return err
	}
	all, each := int64(0), make([]string, 0, len(tree))
	for _, one := range tree {
		all += one.Anonymous
		each = append(each, fmt.Sprintf("%s %.0f", one.Command, mebibytes(one.Anonymous)))
	}
	report.Add(
		measure.Result{Name: "anonymous, " + when, Target: "all", Value: mebibytes(all), Unit: "MiB", Note: strings.Join(each, ", ")},
		measure.Result{
			Name: "resident, " + when, Target: "shard", Value: mebibytes(p.Resident), Unit: "MiB",
			Note: fmt.Sprintf("%.0f MiB with shared pages counted in parts; anonymous %.0f MiB", mebibytes(p.Proportional), mebibytes(p.Anonymous)),
		},
		measure.Result{
			Name: "heap, " + when, Target: "shard", Value: mebibytes(counters.Heap), Unit: "MiB",
			Note: fmt.Sprintf("%d goroutines, %d watch caches, %d serving infos", counters.Goroutines, counters.WatchCaches, counters.ServingInfos),
		},
	)
	return nil
}
