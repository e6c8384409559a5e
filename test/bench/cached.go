package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newCached measures what cached resources take, and what a consumer's request for what is cached does.
func newCached() *workload {
	o := cachedRun{}
	cmd := &cobra.Command{Use: "cached", Short: "Start a cluster with many CachedResources, and measure what they take that are left alone, and a consumer's GET"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.tenants, "workspaces", 100, "workspaces with cached resources, one of each kind")
	fs.IntVar(&o.Kinds, "kinds", 10, "kinds, which the workspaces bind")
	fs.IntVar(&o.Objects, "objects", 10, "objects of each kind in each workspace")
	fs.IntVar(&o.Size, "size", 1024, "bytes of data in an object")
	fs.BoolVar(&o.Shared, "shared-identity", true, "have one identity for all, and not one for each CachedResource")
	fs.IntVar(&o.Creators, "creators", 8, "how many create at a time")
	fs.IntVar(&o.gets, "gets", 5000, "GETs of each kind")
	fs.DurationVar(&o.quietBefore, "settle", 2*time.Minute, "how long the servers are left alone before they are measured")
	fs.DurationVar(&o.idle, "duration", 2*time.Minute, "how long the processor is measured of servers that are left alone")
	fs.DurationVar(&o.timeout, "timeout", 30*time.Minute, "give up after this time")
	fs.StringVar(&o.profiles, "profiles", "", "directory for profiles of the shard that is left alone")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if o.tenants < 1 || o.Kinds < 1 || o.Objects < 1 {
			return errors.New("--workspaces, --kinds and --objects must be above 0")
		}
		return inCluster(ctx, o.binary, o.timeout, func(ctx context.Context, cluster *process.Cluster) error { return o.measure(ctx, cluster, report) })
	}}
}

type cachedRun struct {
	load.Cached

	binary, profiles           string
	tenants, gets              int
	quietBefore, idle, timeout time.Duration
}

func (o *cachedRun) measure(ctx context.Context, cluster *process.Cluster, report *measure.Report) error {
	shard, err := load.NewTarget("shard", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	proxy, err := load.NewTarget("proxy", cluster.ProxyKubeconfig(), "base", true)
	if err != nil {
		return err
	}
	cache, err := load.NewTarget("cache-server", cluster.CacheKubeconfig(), "", true)
	if err != nil {
		return err
	}
	progress("creating %d workspaces", o.tenants+2)
	_, clusters, err := load.Workspaces(ctx, proxy.In("root"), load.WorkspaceOptions{Creators: o.Creators, Count: o.tenants + 2, Timeout: o.timeout, Keep: true, Run: newRun()})
	if err != nil {
		return err
	}
	o.Provider, o.Consumer, o.Tenants = clusters[0], clusters[1], clusters[2:]
	results, err := o.Make(ctx, shard, progress)
	report.Add(results...)
	if err != nil {
		return err
	}
	targets := []load.Target{shard, cache}
	before, err := o.quiet(ctx, cluster, targets, "before")
	if err != nil {
		return err
	}
	count := o.tenants * o.Kinds
	progress("creating %d CachedResources", count)
	results, err = o.Cache(ctx)
	report.Add(results...)
	if err != nil {
		return err
	}
	after, err := o.quiet(ctx, cluster, targets, "after")
	if err != nil {
		return err
	}
	for n, target := range targets {
		was, is := before[n], after[n]
		report.Add(
			measure.Result{
				Name: fmt.Sprintf("idle, more with %d CachedResources", count), Target: target.Name, Value: is.millicores - was.millicores, Unit: "millicores",
				Note: fmt.Sprintf("%.1f without, %.1f with", was.millicores, is.millicores),
			},
			measure.Result{
				Name: "heap of each CachedResource", Target: target.Name, Value: float64(is.Heap-was.Heap) / float64(count) / (1 << 10), Unit: "KiB",
				Note: fmt.Sprintf("with its %d replicas; %d goroutines without, %d with", o.Objects, was.Goroutines, is.Goroutines),
			},
		)
	}
	progress("a consumer's GETs")
	results, err = o.Compare(ctx, o.gets)
	report.Add(results...)
	report.Compare("own object")
	return err
}

// quietState is what a process takes that is left alone.
type quietState struct {
	load.Counters

	millicores float64
}

// quiet leaves the cluster alone, and measures the processes of targets, which have the names of components.
func (o *cachedRun) quiet(ctx context.Context, cluster *process.Cluster, targets []load.Target, when string) ([]quietState, error) {
	progress("leaving the servers alone for %s", o.quietBefore+o.idle)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(o.quietBefore):
	}
	began := time.Now()
	processors, err := processorsOf(cluster, targets)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(o.idle):
	}
	took := time.Since(began)
	then, err := processorsOf(cluster, targets)
	if err != nil {
		return nil, err
	}
	states := make([]quietState, len(targets))
	for n, target := range targets {
		states[n].millicores = 1000 * (then[n] - processors[n]).Seconds() / took.Seconds()
		if states[n].Counters, err = load.ReadCounters(ctx, target); err != nil {
			return nil, err
		}
		if err := o.profile(ctx, target, when, states[n].HeapProfile); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// processorsOf returns the processor time of processes so far.
func processorsOf(cluster *process.Cluster, targets []load.Target) ([]time.Duration, error) {
	all := make([]time.Duration, len(targets))
	for n, target := range targets {
		p, err := componentOf(cluster, target.Name)
		if err != nil {
			return nil, err
		}
		all[n] = p.Processor
	}
	return all, nil
}

// profile writes profiles, if they are asked for.
func (o *cachedRun) profile(ctx context.Context, target load.Target, when string, heap []byte) error {
	if o.profiles == "" {
		return nil
	}
	const seconds = 10
	processor, err := load.CPUProfile(ctx, target, seconds)
	if err != nil {
		return fmt.Errorf("profiling %s: %w", target.Name, err)
	}
	for kind, content := range map[string][]byte{"heap": heap, "cpu": processor} {
		file := fmt.Sprintf("%s/%s-%s.%s", o.profiles, target.Name, when, kind)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return fmt.Errorf("writing a profile: %w", err)
		}
	}
	return nil
}
