package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newBindings measures what bound APIs cost.
func newBindings() *workload {
	o := bindingsRun{}
	cmd := &cobra.Command{Use: "bindings", Short: "Start a cluster and bind one export in many logical clusters of its shard"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.Count, "bindings", 10000, "logical clusters to bind the export in")
	fs.IntVar(&o.Creators, "creators", 8, "how many create at a time")
	fs.Float64Var(&o.Rate, "rate", 50, "bindings to create per second; 0 means as fast as it goes")
	fs.IntVar(&o.rounds, "rounds", 2, "how often the export gets a new schema")
	fs.DurationVar(&o.quiet, "duration", 10*time.Second, "how long a quiet tenant is measured alone, and as long while a new schema spreads")
	fs.DurationVar(&o.timeout, "timeout", 30*time.Minute, "give up after this time")
	fs.DurationVar(&o.quietBefore, "settle", time.Minute, "how long the shard is left alone before its memory is read")
	fs.StringVar(&o.profiles, "profiles", "", "directory for profiles of the shard: its heap, and its processor while a new schema spreads")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		ctx, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		dir, err := os.MkdirTemp("", "shardplane-bench-")
		if err != nil {
			return fmt.Errorf("making a directory for the cluster: %w", err)
		}
		o.dir, o.report, o.Run = dir, report, newRun()
		err = o.measure(ctx)
		if o.cluster != nil {
			err = errors.Join(err, o.cluster.Stop())
		}
		return errors.Join(err, os.RemoveAll(dir))
	}}
}

type bindingsRun struct {
	load.BindingOptions
	binary, dir, profiles       string
	rounds                      int
	quiet, timeout, quietBefore time.Duration

	report   *measure.Report
	cluster  *process.Cluster
	shard    load.Target
	bindings *load.Bindings
}

// measure takes the same steps with the logical clusters alone, and with bindings in
// all of them: a restart, and what the shard's process holds then.
func (o *bindingsRun) measure(ctx context.Context) error {
	if _, err := o.start(ctx); err != nil {
		return err
	}
	progress("creating %d logical clusters", o.Count+1)
	bindings, results, err := load.NewBindings(ctx, o.shard, o.BindingOptions)
	o.report.Add(results...)
	if err != nil {
		return err
	}
	o.bindings = bindings
	// What all share is paid for by the first binding, and is used before it is counted.
	if _, err := o.bindings.Bind(ctx, 1, 1); err != nil {
		return err
	}
	before, err := o.restart(ctx, 1)
	if err != nil {
		return err
	}
	progress("creating %d bindings at %v a second", o.Count-1, o.Rate)
	results, err = o.bindings.Bind(ctx, 2, o.Count)
	o.report.Add(results...)
	if err != nil {
		return err
	}
	atOnce, err := o.state(ctx, "at-once", o.Count)
	if err != nil {
		return err
	}
	o.compare("at once", before, atOnce)
	if err := o.disturb(ctx); err != nil {
		return err
	}
	after, err := o.restart(ctx, o.Count)
	if err != nil {
		return err
	}
	o.compare("after a restart", before, after)
	return nil
}

// start starts the cluster, and returns when.
func (o *bindingsRun) start(ctx context.Context) (began time.Time, err error) {
	options := process.ClusterOptions{Binary: o.binary, Dir: o.dir, Shards: 1, Out: io.Discard}
	if o.cluster != nil {
		options.Port = o.cluster.Port()
		err, o.cluster = o.cluster.Stop(), nil
		if err != nil {
			return began, fmt.Errorf("stopping the cluster: %w", err)
		}
	}
	began = time.Now()
	if o.cluster, _, err = process.StartCluster(ctx, options); err != nil {
		return began, err
	}
	o.shard, err = load.NewTarget("shard", o.cluster.ShardKubeconfig(0), "base", true)
	return began, err
}

// restart starts the cluster again and measures how long it takes until what is bound
// in the last of so many logical clusters is served.
func (o *bindingsRun) restart(ctx context.Context, bound int) (shardState, error) {
	progress("restarting with %d bindings", bound)
	began, err := o.start(ctx)
	if err == nil {
		err = o.bindings.Reconnect(o.shard)
	}
	if err == nil {
		err = o.bindings.Use(ctx, bound)
	}
	if err != nil {
		return shardState{}, err
	}
	took := time.Since(began)
	memory, err := shardOf(o.cluster)
	if err != nil {
		return shardState{}, err
	}
	what := fmt.Sprintf("restart with %d bindings", bound)
	o.report.Add(
		measure.Result{Name: what, Target: "cluster", Value: took.Seconds(), Unit: "s", Note: "until what is bound is served"},
		measure.Result{Name: what + ", processor", Target: "shard", Value: memory.Processor.Seconds(), Unit: "s"},
	)
	return o.state(ctx, fmt.Sprintf("restarted-%d", bound), bound)
}

// shardState is what a shard's process holds.
type shardState struct {
	load.Counters
	resident int64
}

// state uses some of the bindings and returns what there is after a while.
func (o *bindingsRun) state(ctx context.Context, name string, bound int) (shardState, error) {
	for n := 1; n <= bound; n += max(bound/100, 1) {
		if err := o.bindings.Use(ctx, n); err != nil {
			return shardState{}, err
		}
	}
	select {
	case <-ctx.Done():
		return shardState{}, ctx.Err()
	case <-time.After(o.quietBefore):
	}
	counters, err := load.ReadCounters(ctx, o.shard)
	if err != nil {
		return shardState{}, err
	}
	if err := o.profile(name+".heap", counters.HeapProfile); err != nil {
		return shardState{}, err
	}
	memory, err := shardOf(o.cluster)
	return shardState{Counters: counters, resident: memory.Resident}, err
}

// profile writes a profile, if it is asked for.
func (o *bindingsRun) profile(name string, profile []byte) error {
	if o.profiles == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(o.profiles, name), profile, 0o600); err != nil {
		return fmt.Errorf("writing a profile: %w", err)
	}
	return nil
}

// compare reports what the bindings after the first have added.
func (o *bindingsRun) compare(when string, before, after shardState) {
	add := func(name string, value float64, unit string, before, after float64) {
		o.report.Add(measure.Result{
			Name: name + ", " + when, Target: "shard", Value: value, Unit: unit, Count: o.Count,
			Note: fmt.Sprintf("%.4g with one binding, %.4g with all", before, after),
		})
	}
	perBinding := func(bytes int64) float64 { return float64(bytes) / 1024 / float64(o.Count-1) }
	add("heap per binding", perBinding(after.Heap-before.Heap), "KiB", mebibytes(before.Heap), mebibytes(after.Heap))
	add("resident per binding", perBinding(after.resident-before.resident), "KiB", mebibytes(before.resident), mebibytes(after.resident))
	count := func(name string, before, after int) {
		add(name+" more", float64(after-before), "", float64(before), float64(after))
	}
	count("goroutines", before.Goroutines, after.Goroutines)
	count("watch caches", before.WatchCaches, after.WatchCaches)
	count("serving infos", before.ServingInfos, after.ServingInfos)
	count("document sets", before.DocumentSets, after.DocumentSets)
}

// disturb has the export name new schemas, and measures a tenant who has bound nothing.
func (o *bindingsRun) disturb(ctx context.Context) error {
	progress("a new schema for %d bindings", o.Count)
	spread := &load.NewSchema{Context: ctx, Bindings: o.bindings, Bound: o.Count, Follow: func(schema string) (func() (time.Duration, error), error) {
		return follow(ctx, o.cluster.ShardKubeconfig(0), schema, o.Count)
	}}
	var profiling sync.WaitGroup
	if o.profiles != "" {
		spread.Started = func() {
			profiling.Go(func() {
				profile, err := load.CPUProfile(ctx, o.shard, int(o.quiet.Seconds()))
				if err = errors.Join(err, o.profile("new-schema.cpu", profile)); err != nil {
					progress("no profile: %v", err)
				}
			})
		}
	}
	defer profiling.Wait()
	results, err := load.Fairness(ctx, o.bindings.Quiet(), load.FairnessOptions{
		Rounds: o.rounds, Duration: o.quiet, Interval: 20 * time.Millisecond, Size: 512, Writes: true, Run: o.Run,
	}, spread)
	for i := range results {
		results[i].Name = strings.ReplaceAll(results[i].Name, "beside a flood", "while a new schema spreads")
	}
	o.report.Add(results...)
	o.report.Add(spread.Result())
	return err
}
