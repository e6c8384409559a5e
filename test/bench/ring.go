package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newRing measures rings of replicas.
func newRing() *workload {
	var binary string
	var timeout time.Duration
	o := load.RingOptions{}
	cmd := &cobra.Command{Use: "ring", Short: "Start a cluster, and measure rings whose members join, leave and crash"}
	fs := cmd.Flags()
	fs.StringVar(&binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.Rounds, "rounds", 4, "how often a member joins and leaves")
	fs.IntVar(&o.Members, "members", 64, "members of the large ring")
	fs.DurationVar(&o.Window, "window", 30*time.Second, "how long the writes of its members are counted")
	fs.DurationVar(&timeout, "timeout", 10*time.Minute, "give up after this time")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if o.Rounds < 1 || o.Members < 1 || o.Window <= 0 {
			return errors.New("--rounds, --members and --window must be above 0")
		}
		o.Run = newRun()
		return inCluster(ctx, binary, timeout, func(ctx context.Context, cluster *process.Cluster) error {
			return measureRings(ctx, cluster, report, o)
		})
	}}
}

func measureRings(ctx context.Context, cluster *process.Cluster, report *measure.Report, o load.RingOptions) error {
	shard, err := load.NewTarget("shard", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	progress("%d members join and leave, and one crashes", o.Rounds)
	results, err := load.Moves(ctx, shard, o)
	report.Add(results...)
	if err != nil {
		return err
	}
	progress("a crash with short Leases")
	crash, err := load.Crash(ctx, shard, 3*time.Second, o)
	if err != nil {
		return err
	}
	report.Add(crash)
	progress("members of several weights")
	shares, err := load.Shares(ctx, shard, o)
	if err != nil {
		return err
	}
	report.Add(shares)
	progress("%d members", o.Members)
	results, err = load.Many(ctx, shard, o)
	report.Add(results...)
	return err
}
