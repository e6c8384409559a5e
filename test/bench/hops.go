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
	"github.com/shardplane/shardplane/test/bench/reference"
)

// newHops measures what the front-proxy adds to a GET, and what any proxy adds.
func newHops() *workload {
	var binary string
	o := load.HopOptions{}
	cmd := &cobra.Command{
		Use:   "hops",
		Short: "Start a cluster and read by turns from its shard, through its front-proxy, and through a plain reverse proxy",
	}
	fs := cmd.Flags()
	fs.StringVar(&binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.Clients, "clients", 16, "clients that read at a time")
	fs.IntVar(&o.Rounds, "rounds", 7, "how often to measure each way")
	fs.DurationVar(&o.Duration, "duration", 3*time.Second, "how long each takes")
	fs.IntVar(&o.Objects, "objects", 500, "ConfigMaps that are read")
	fs.IntVar(&o.Size, "size", 512, "bytes of data in an object")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if o.Clients < 1 || o.Rounds < 1 || o.Objects < 1 {
			return errors.New("--clients, --rounds and --objects must be at least 1")
		}
		dir, err := os.MkdirTemp("", "shardplane-bench-")
		if err != nil {
			return fmt.Errorf("making a directory for the cluster: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		cluster, _, err := process.StartCluster(ctx, process.ClusterOptions{Binary: binary, Dir: filepath.Join(dir, "cluster"), Shards: 1, Out: io.Discard})
		if err != nil {
			return err
		}
		o.Run = newRun()
		return errors.Join(measureHops(ctx, report, cluster, filepath.Join(dir, "plain"), o), cluster.Stop())
	}}
}

func measureHops(ctx context.Context, report *measure.Report, cluster *process.Cluster, dir string, o load.HopOptions) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	plain, err := process.Start(ctx, io.Discard, self, "reference-proxy", "--dir", dir, "--kubeconfig", cluster.ShardKubeconfig(0), "--context", "base")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Stop(30*time.Second)) }()
	kubeconfig := filepath.Join(dir, "reference.kubeconfig")
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := plain.WaitForFile(starting, kubeconfig, false); err != nil {
		return err
	}
	var targets []load.Target
	for _, way := range []struct{ name, kubeconfig, context string }{
		{"direct", cluster.ShardKubeconfig(0), "base"}, {"front-proxy", cluster.ProxyKubeconfig(), "base"}, {"plain proxy", kubeconfig, ""},
	} {
		target, err := load.NewTarget(way.name, way.kubeconfig, way.context, true)
		if err != nil {
			return err
		}
		targets = append(targets, target.In("root"))
	}
	progress("reading in %d rounds", o.Rounds)
	results, err := load.Hops(ctx, targets, o)
	report.Add(results...)
	return err
}

func newReferenceProxy() *cobra.Command {
	o := reference.ProxyOptions{}
	cmd := &cobra.Command{
		Use:   "reference-proxy",
		Short: "Serve the plain reverse proxy that the front-proxy is compared with, until interrupted",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory for its certificates and kubeconfig (required)")
	cmd.Flags().StringVar(&o.Backend, "kubeconfig", "", "kubeconfig of the server to forward to, with the credentials to use there (required)")
	cmd.Flags().StringVar(&o.Context, "context", "", "the context in it; none for the current one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Dir == "" || o.Backend == "" {
			return errors.New("--dir and --kubeconfig are required")
		}
		o.Ready = func(kubeconfig string) { progress("ready: kubectl --kubeconfig %s get namespaces", kubeconfig) }
		return reference.RunProxy(cmd.Context(), o)
	}
	return cmd
}
