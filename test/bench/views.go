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
	o := viewsRun{}
	cmd := &cobra.Command{Use: "views", Short: "Start a cluster and work through the view of an export"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.objects, "objects", 10000, "objects that a claim is accepted for")
	fs.IntVar(&o.repeat, "repeat", 10, "how often the claim is accepted and rejected")
	fs.IntVar(&o.gets, "gets", 5000, "GETs of each kind")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Minute, "give up after this time")
	fs.StringVar(&o.profile, "profile", "", "file for a profile of the shard's processor, of 10 s of claims")
	addDeliveryFlags(cmd, &o.delivery)
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		return inCluster(ctx, o.binary, o.timeout, func(ctx context.Context, cluster *process.Cluster) error { return o.measure(ctx, cluster, report) })
	}}
}

type viewsRun struct {
	binary, profile       string
	objects, gets, repeat int
	timeout               time.Duration
	delivery              delivery
}

// inCluster starts a cluster of one shard in a new directory, and stops it after f.
func inCluster(ctx context.Context, binary string, timeout time.Duration, f func(context.Context, *process.Cluster) error) error {
	return inShards(ctx, binary, 1, timeout, f)
}

// inShards is inCluster for so many shards.
func inShards(ctx context.Context, binary string, shards int, timeout time.Duration, f func(context.Context, *process.Cluster) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "shardplane-bench-")
	if err != nil {
		return fmt.Errorf("making a directory for the cluster: %w", err)
	}
	cluster, _, err := process.StartCluster(ctx, process.ClusterOptions{Binary: binary, Dir: dir, Shards: shards, Out: io.Discard})
	if err == nil {
		err = errors.Join(f(ctx, cluster), cluster.Stop())
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func (o *viewsRun) measure(ctx context.Context, cluster *process.Cluster, report *measure.Report) error {
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
	progress("creating %d objects", o.objects)
	views, err := load.NewViews(ctx, bindings, o.objects, o.gets)
	if err != nil {
		return err
	}
	profiled := profileTo(ctx, o.profile, shard, 10*time.Second)
	progress("accepting and rejecting the claim")
	results, err := views.Claims(ctx, o.repeat)
	if err = errors.Join(err, <-profiled); err != nil {
		return err
	}
	report.Add(results...)
	results, err = views.Compare(ctx)
	if err != nil {
		return err
	}
	report.Add(results...)
	report.Compare("direct")
	if err := bindings.Written(ctx); err != nil {
		return err
	}
	progress("events at watches of the shard, and through the view")
	// Until then watches that start are told of the claim once more, and so of all objects.
	const retold = 12 * time.Second
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(retold):
	}
	for _, watches := range []int{1, o.delivery.watches} {
		results, err := bindings.Compared(ctx, fmt.Sprintf("event at %d wildcard watches", watches), watches, o.delivery.in(cluster))
		if err != nil {
			return err
		}
		report.Add(results...)
	}
	report.Compare("shard")
	return nil
}

// profileTo profiles a server's processor for so long, if there is a file for it.
func profileTo(ctx context.Context, file string, server load.Target, duration time.Duration) <-chan error {
	done := make(chan error, 1)
	if file == "" {
		close(done)
		return done
	}
	go func() {
		profile, err := load.CPUProfile(ctx, server, max(int(duration.Seconds()), 1))
		if err == nil {
			err = os.WriteFile(file, profile, 0o600)
		}
		done <- err
	}()
	return done
}
