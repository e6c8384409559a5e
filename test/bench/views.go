package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newViews measures the views of exports.
func newViews() *workload {
	var binary string
	var objects, gets int
	var timeout time.Duration
	cmd := &cobra.Command{Use: "views", Short: "Start a cluster and work through the view of an export"}
	fs := cmd.Flags()
	fs.StringVar(&binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&objects, "objects", 10000, "objects that a claim is accepted for")
	fs.IntVar(&gets, "gets", 5000, "GETs of each kind")
	fs.DurationVar(&timeout, "timeout", 10*time.Minute, "give up after this time")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		dir, err := os.MkdirTemp("", "shardplane-bench-")
		if err != nil {
			return fmt.Errorf("making a directory for the cluster: %w", err)
		}
		cluster, _, err := process.StartCluster(ctx, process.ClusterOptions{Binary: binary, Dir: dir, Shards: 1, Out: io.Discard})
		if err == nil {
			err = errors.Join(measureViews(ctx, cluster, report, objects, gets), cluster.Stop())
		}
		return errors.Join(err, os.RemoveAll(dir))
	}}
}

func measureViews(ctx context.Context, cluster *process.Cluster, report *measure.Report, objects, gets int) error {
	shard, err := load.NewTarget("shard", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	const creators = 8
	bindings, _, err := load.NewBindings(ctx, shard, load.BindingOptions{Count: 1, Creators: creators, Run: newRun()})
	if err != nil {
		return err
	}
	if _, err := bindings.Bind(ctx, 1, 1); err != nil {
		return err
	}
	progress("creating %d objects", objects)
	views, err := load.NewViews(ctx, bindings, objects, gets)
	if err != nil {
		return err
	}
	for _, measure := range []func(context.Context) ([]measure.Result, error){views.Claim, views.Claim, views.Claim, views.Compare} {
		results, err := measure(ctx)
		if err != nil {
			return err
		}
		report.Add(results...)
	}
	report.Compare("direct")
	return nil
}
