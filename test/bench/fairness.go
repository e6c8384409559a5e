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
	var parent, quiet, noisy string
	var clients, niceness int
	o := load.FairnessOptions{}
	cmd := &cobra.Command{
		Use:   "fairness",
		Short: "Measure a quiet logical cluster while another is flooded",
		Long: `Measure a quiet logical cluster, alone and while another one is flooded by
clients in a process of their own.

The flood's process gives way to others where they want the same cores
(--flood-nice 19): it takes the CPU of clients elsewhere, none of the server's.`,
	}
	fs := cmd.Flags()
	from.add(fs)
	fs.StringVar(&parent, "parent", "root", "logical cluster to create two workspaces in, by name or path")
	fs.StringVar(&quiet, "quiet", "", "logical cluster to be quiet, instead of a new workspace; give --noisy too")
	fs.StringVar(&noisy, "noisy", "", "logical cluster to be flooded, instead of a new workspace; give --quiet too")
	fs.IntVar(&clients, "clients", 64, "clients of the noisy logical cluster")
	fs.IntVar(&niceness, "flood-nice", 19, "niceness of the flood's process; 0 lets its clients compete with the server for the same cores")
	fs.IntVar(&o.Rounds, "rounds", 7, "how often to measure the quiet one alone and beside the flood")
	fs.DurationVar(&o.Duration, "duration", 4*time.Second, "how long each of both takes")
	fs.DurationVar(&o.Interval, "interval", 10*time.Millisecond, "time between two requests of the quiet one")
	fs.IntVar(&o.Size, "size", 512, "bytes of data in an object")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if clients < 1 || o.Rounds < 1 {
			return errors.New("--clients and --rounds must be at least 1")
		}
		if (quiet == "") != (noisy == "") {
			return errors.New("--quiet and --noisy go together: give both or none")
		}
		target, err := from.target()
		if err != nil {
			return err
		}
		o.Run = newRun()
		if quiet == "" {
			if quiet, noisy, err = twoWorkspaces(ctx, target.In(parent), o.Run); err != nil {
				return err
			}
		}
		flood, err := startFlood(ctx, niceness, from, noisy, load.FloodOptions{Clients: clients, Size: o.Size, Run: o.Run})
		if err != nil {
			return err
		}
		progress("measuring %d rounds", o.Rounds)
		results, err := load.Fairness(ctx, target.In(quiet), o, flood)
		report.Add(results...)
		sent, floodErr := flood.End()
		report.Add(sent)
		return errors.Join(err, floodErr)
	}}
}

// twoWorkspaces creates two workspaces and returns their logical clusters.
func twoWorkspaces(ctx context.Context, parent load.Target, run string) (quiet, noisy string, err error) {
	_, clusters, err := load.Workspaces(ctx, parent, load.WorkspaceOptions{Creators: 2, Count: 2, Timeout: time.Minute, Keep: true, Run: run})
	if err != nil {
		return "", "", fmt.Errorf("creating two workspaces: %w", err)
	}
	if len(clusters) < 2 {
		return "", "", fmt.Errorf("%d of two workspaces became ready", len(clusters))
	}
	return clusters[0], clusters[1], nil
}
