package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newRestart measures the start of a shard while all else is away.
func newRestart() *workload {
	o := restartRun{}
	cmd := &cobra.Command{Use: "restart", Short: "Start a cluster of two shards, stop it, and start one with what it has kept of the other, while all else is away"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntVar(&o.replicas, "replicas", 10000, "replicas that the shard knows of the other")
	fs.IntVar(&o.size, "size", 3500, "bytes of data in each")
	fs.IntVar(&o.rounds, "rounds", 5, "how often it is started")
	fs.DurationVar(&o.timeout, "timeout", 15*time.Minute, "give up after this time")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if o.replicas < 1 || o.rounds < 1 {
			return errors.New("--replicas and --rounds must be above 0")
		}
		return inShards(ctx, o.binary, 2, o.timeout, func(ctx context.Context, cluster *process.Cluster) error { return o.measure(ctx, cluster, report) })
	}}
}

type restartRun struct {
	binary                 string
	replicas, size, rounds int
	timeout                time.Duration

	// provider has what is replicated, and consumers use it on the shard that is started.
	provider, consumers *load.Bindings
	shard               load.Target
}

func (o *restartRun) measure(ctx context.Context, cluster *process.Cluster, report *measure.Report) (err error) {
	root, err := load.NewTarget("root", cluster.ShardKubeconfig(0), "base", true)
	if err != nil {
		return err
	}
	if o.shard, err = load.NewTarget("shard-1", cluster.ShardKubeconfig(1), "base", true); err != nil {
		return err
	}
	const creators = 8
	if o.provider, _, err = load.NewBindings(ctx, root, load.BindingOptions{Creators: creators, Run: newRun()}); err != nil {
		return err
	}
	if o.consumers, _, err = load.NewBindings(ctx, o.shard, load.BindingOptions{Count: 1, Creators: creators, Run: newRun()}); err != nil {
		return err
	}
	if err := o.consumers.BindTo(ctx, o.provider, 1); err != nil {
		return err
	}
	progress("creating %d objects", o.replicas)
	results, err := o.provider.Share(ctx, o.replicas, o.size)
	report.Add(results...)
	if err != nil {
		return err
	}
	progress("waiting until the other shard has kept them")
	size, err := o.kept(ctx, cluster.SnapshotFile(1))
	if err != nil {
		return err
	}
	report.Add(measure.Result{Name: "snapshot", Target: o.shard.Name, Value: mebibytes(int64(size)), Unit: "MiB", Count: o.replicas})
	p, err := componentOf(cluster, "shard "+o.shard.Name)
	if err != nil {
		return err
	}
	command, err := process.Arguments(p.PID)
	if err != nil {
		return err
	}
	if err := cluster.Stop(); err != nil {
		return err
	}
	return o.restart(ctx, command, report)
}

// kept waits until a snapshot has all replicas, and returns its size.
func (o *restartRun) kept(ctx context.Context, file string) (int, error) {
	for {
		content, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("reading what the shard has kept: %w", err)
		}
		kept := bytes.Count(content, []byte(`"name":"`+load.SharedName))
		if kept >= o.replicas {
			return len(content), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("the shard has kept %d of %d replicas: %w", kept, o.replicas, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// keptMessage is what the log says of a shard that begins with what it has kept.
const keptMessage = "Starting with what was known of other shards"

// restart starts the shard's process again and again, and measures how long it takes until it is ready, and until it
// tells which shards there are and serves what is bound.
func (o *restartRun) restart(ctx context.Context, command []string, report *measure.Report) error {
	ready, serves := &measure.Recorder{}, &measure.Recorder{}
	var resident int64
	for round := range o.rounds {
		progress("start %d of %d", round+1, o.rounds)
		if err := o.consumers.Reconnect(o.shard); err != nil {
			return err
		}
		log := &bytes.Buffer{}
		began := time.Now()
		shard, err := process.Start(ctx, log, command[0], command[1:]...)
		if err != nil {
			return err
		}
		if err = o.consumers.Ready(ctx); err == nil {
			ready.Add(time.Since(began))
			if err = errors.Join(o.consumers.KnowsShards(ctx, 2), o.consumers.Use(ctx, 1)); err == nil {
				serves.Add(time.Since(began))
			}
		}
		if err == nil {
			var tree []process.Memory
			if tree, err = process.Tree(shard.PID()); err == nil {
				resident = max(resident, tree[0].Resident)
			}
		}
		stopped := shard.Stop(time.Minute)
		said := log.Bytes()
		if !bytes.Contains(said, []byte(keptMessage)) {
			err = errors.Join(err, errors.New("the shard has not begun with what it has kept"))
		}
		if err = errors.Join(err, stopped); err != nil {
			const last = 4000
			return fmt.Errorf("%w\n%s", err, said[max(0, len(said)-last):])
		}
	}
	report.Add(
		ready.Median("start, all else away: ready", o.shard.Name),
		serves.Median("start, all else away: the shards known, and what is bound served", o.shard.Name),
		measure.Result{Name: "resident after it", Target: o.shard.Name, Value: mebibytes(resident), Unit: "MiB", Note: "the largest"},
	)
	return nil
}
