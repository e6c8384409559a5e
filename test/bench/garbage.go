package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newGarbage measures the garbage collector, in one logical cluster and beside many.
func newGarbage() *workload {
	o := garbageRun{}
	cmd := &cobra.Command{Use: "garbage", Short: "Start a cluster, and measure what objects cost that go with their owner, beside few and many logical clusters"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.workspaces, "workspaces", 10000, "workspaces beside which it is measured in the end")
	fs.IntVar(&o.dependents, "dependents", 2000, "objects that go with one owner")
	fs.IntVar(&o.rounds, "rounds", 5, "how often it is measured")
	fs.DurationVar(&o.quietBefore, "settle", time.Minute, "how long the shard is left alone after the workspaces were made")
	fs.DurationVar(&o.timeout, "timeout", time.Hour, "give up after this time")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		return inCluster(ctx, o.binary, o.timeout, func(ctx context.Context, cluster *process.Cluster) error { return o.measure(ctx, cluster, report) })
	}}
}

type garbageRun struct {
	binary                         string
	workspaces, dependents, rounds int
	quietBefore, timeout           time.Duration
}

func (o *garbageRun) measure(ctx context.Context, cluster *process.Cluster, report *measure.Report) error {
	shard, err := load.NewTarget("shard", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	proxy, err := load.NewTarget("proxy", cluster.ProxyKubeconfig(), "base", true)
	if err != nil {
		return err
	}
	alone, err := o.collect(ctx, cluster, shard, proxy, 1, report)
	if err != nil {
		return err
	}
	progress("creating %d workspaces", o.workspaces)
	results, _, err := load.Workspaces(ctx, proxy.In("root"), load.WorkspaceOptions{Creators: 8, Count: o.workspaces, Timeout: o.timeout, Keep: true, Run: newRun()})
	report.Add(results...)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(o.quietBefore):
	}
	beside, err := o.collect(ctx, cluster, shard, proxy, o.workspaces, report)
	if err != nil {
		return err
	}
	report.Results[len(report.Results)-1].Ratio = beside / alone
	return nil
}

// collect has owners deleted in a workspace of its own, and returns the processor time of the
// shard for each object that goes, in microseconds, of the median round.
func (o *garbageRun) collect(ctx context.Context, cluster *process.Cluster, shard, proxy load.Target, workspaces int, report *measure.Report) (float64, error) {
	_, clusters, err := load.Workspaces(ctx, proxy.In("root"), load.WorkspaceOptions{Creators: 1, Count: 1, Timeout: o.timeout, Keep: true, Run: newRun()})
	if err != nil {
		return 0, err
	}
	var took []time.Duration
	var each []float64
	var collector time.Duration
	for range o.rounds {
		elapsed, spent, err := load.Garbage(ctx, shard.In(clusters[0]), load.GarbageOptions{
			Dependents: o.dependents, Run: newRun(),
			Spent: func() (load.Spent, error) { return spentBy(ctx, cluster, shard) },
		})
		if err != nil {
			return 0, err
		}
		took = append(took, elapsed)
		each = append(each, float64(spent.All.Microseconds())/float64(o.dependents))
		collector += spent.Collector
	}
	slices.Sort(each)
	slices.Sort(took)
	median := each[len(each)/2]
	of := fmt.Sprintf("%d objects go with their owner, %d workspaces", o.dependents, workspaces)
	report.Add(
		measure.Result{Name: of + ": until the last is gone", Target: "shard", Value: float64(took[len(took)/2].Milliseconds()), Unit: "ms", Count: o.rounds},
		measure.Result{
			Name: of + ": processor each", Target: "shard", Value: median, Unit: "µs", Count: o.rounds,
			Note: fmt.Sprintf("%.0f to %.0f µs in single rounds; %.0f µs of all rounds' mean for the collection of Go's garbage",
				each[0], each[len(each)-1], float64(collector.Microseconds())/float64(o.rounds*o.dependents)),
		},
	)
	return median, nil
}

// spentBy returns what the shard has computed so far. What its collector took is that of
// collections that have ended.
func spentBy(ctx context.Context, cluster *process.Cluster, shard load.Target) (load.Spent, error) {
	collector, err := load.ReadCollector(ctx, shard)
	if err != nil {
		return load.Spent{}, err
	}
	p, err := shardOf(cluster)
	return load.Spent{All: p.Processor, Collector: collector.Processor}, err
}
