package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
)

func newFairness() *workload {
	var from targetFlags
	var parent string
	o := load.FairnessOptions{}
	cmd := &cobra.Command{Use: "fairness", Short: "Measure a quiet logical cluster while another is flooded, in workspaces that it creates"}
	fs := cmd.Flags()
	from.add(fs)
	fs.StringVar(&parent, "parent", "root", "logical cluster to create the two workspaces in, by name or path")
	fs.IntVar(&o.Clients, "clients", 64, "clients of the noisy logical cluster")
	fs.IntVar(&o.Rounds, "rounds", 7, "how often to measure the quiet one alone and beside the flood")
	fs.DurationVar(&o.Duration, "duration", 4*time.Second, "how long each of both takes")
	fs.DurationVar(&o.Interval, "interval", 10*time.Millisecond, "time between two requests of the quiet one")
	fs.IntVar(&o.Size, "size", 512, "bytes of data in an object")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		target, err := from.target()
		if err != nil {
			return err
		}
		if o.Clients < 1 || o.Rounds < 1 {
			return errors.New("--clients and --rounds must be at least 1")
		}
		run := newRun()
		w := load.WorkspaceOptions{Creators: 2, Count: 2, Timeout: time.Minute, Keep: true, Run: run}
		_, clusters, err := load.Workspaces(ctx, target.In(parent), w)
		if err != nil {
			return fmt.Errorf("creating two workspaces: %w", err)
		}
		if len(clusters) < 2 {
			return fmt.Errorf("%d of two workspaces became ready", len(clusters))
		}
		o.Run = run
		progress("measuring %d rounds", o.Rounds)
		results, err := load.Fairness(ctx, target.In(clusters[0]), target.In(clusters[1]), o)
		report.Add(results...)
		return err
	}}
}
