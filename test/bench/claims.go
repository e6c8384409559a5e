package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newClaims measures what events of claimed objects cost where much is claimed.
func newClaims() *workload {
	o := claimsRun{}
	cmd := &cobra.Command{Use: "claims", Short: "Start a cluster and measure events of claimed objects, with few claims and with many"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.bindings, "bindings", 10000, "logical clusters that accept a claim, at the end; ten do at first")
	fs.IntVar(&o.exports, "exports", 500, "exports that claim, with a watch each")
	fs.DurationVar(&o.timeout, "timeout", 30*time.Minute, "give up after this time")
	addDeliveryFlags(cmd, &o.delivery)
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		return inCluster(ctx, o.binary, o.timeout, func(ctx context.Context, cluster *process.Cluster) error { return o.measure(ctx, cluster, report) })
	}}
}

type claimsRun struct {
	binary            string
	bindings, exports int
	timeout           time.Duration
	delivery          delivery
}

// delivery says how events are measured.
type delivery struct {
	load.DeliveryOptions
	watches int
}

func addDeliveryFlags(cmd *cobra.Command, d *delivery) {
	fs := cmd.Flags()
	fs.IntVar(&d.Rounds, "rounds", 6, "turns of each kind of event")
	fs.IntVar(&d.Writes, "writes", 1000, "writes of a turn")
	fs.Float64Var(&d.Rate, "rate", 250, "writes per second; 0 means as fast as they go")
	fs.IntVar(&d.watches, "watches", 8, "watches of the shard, and through the view")
}

// shardOf returns the process of the cluster's shard.
func shardOf(cluster *process.Cluster) (process.Memory, error) { return componentOf(cluster, "shard") }

// componentOf returns what the process of a component takes, the first whose command is such.
func componentOf(cluster *process.Cluster, command string) (process.Memory, error) {
	tree, err := process.Tree(cluster.PID())
	if err != nil {
		return process.Memory{}, err
	}
	for _, p := range tree {
		if strings.Contains(p.Command, " "+command) {
			return p, nil
		}
	}
	return process.Memory{}, fmt.Errorf("the cluster has no process of a %s", command)
}

// in has the processor time of the cluster's shard measured.
func (d delivery) in(cluster *process.Cluster) load.DeliveryOptions {
	o := d.DeliveryOptions
	o.Processor = func() (time.Duration, error) {
		p, err := shardOf(cluster)
		return p.Processor, err
	}
	return o
}

func (o *claimsRun) measure(ctx context.Context, cluster *process.Cluster, report *measure.Report) error {
	shard, err := load.NewTarget("shard", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	const few, creators = 10, 8
	progress("creating %d logical clusters", o.bindings+1)
	bindings, _, err := load.NewBindings(ctx, shard, load.BindingOptions{Count: o.bindings, Creators: creators, Claims: true, Run: newRun()})
	if err != nil {
		return err
	}
	bound := 0
	for _, count := range []int{few, o.bindings - 2} { // two are for the claims of other exports
		progress("binding in %d of them", count)
		if _, err := bindings.Bind(ctx, bound+1, count); err != nil {
			return err
		}
		if bound == 0 {
			if err := bindings.Written(ctx); err != nil {
				return err
			}
		}
		bound = count
		progress("events of claimed objects")
		results, err := bindings.Compared(ctx, fmt.Sprintf("claim accepted in %d logical clusters", count), o.delivery.watches, o.delivery.in(cluster))
		if err != nil {
			return err
		}
		report.Add(results...)
	}
	report.Compare("shard")
	progress("creating %d exports that claim", o.exports)
	all := o.delivery.in(cluster)
	all.Rate, all.Writes = 10, 50
	results, err := bindings.ClaimingExports(ctx, o.exports, o.delivery.in(cluster), all)
	report.Add(results...)
	report.Compare("alone")
	return err
}
