package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newReplicas measures replicas that divide objects among them.
func newReplicas() *workload {
	o := replicasRun{}
	cmd := &cobra.Command{Use: "replicas", Short: "Start a cluster, and measure what each of several replicas receives and computes that divide all objects"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program to start the cluster with; make build builds it")
	fs.IntSliceVar(&o.counts, "replicas", []int{1, 2, 4, 8}, "how many replicas, one after the other")
	fs.IntVar(&o.objects, "objects", 100000, "ConfigMaps, in --workspaces workspaces")
	fs.IntVar(&o.workspaces, "workspaces", 50, "workspaces that hold them")
	fs.IntVar(&o.size, "size", 1024, "bytes of data in an object")
	fs.Float64Var(&o.rate, "rate", 1000, "updates per second")
	fs.DurationVar(&o.duration, "duration", time.Minute, "how long they are made for each number of replicas")
	fs.BoolVar(&o.atClient, "at-client", true, "measure the largest number of replicas again, which drop what is others' themselves")
	fs.DurationVar(&o.timeout, "timeout", 30*time.Minute, "give up after this time")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if len(o.counts) == 0 || o.objects < 1 || o.workspaces < 1 || o.rate <= 0 {
			return errors.New("--replicas, --objects, --workspaces and --rate must be above 0")
		}
		return inCluster(ctx, o.binary, o.timeout, func(ctx context.Context, cluster *process.Cluster) error { return o.measure(ctx, cluster, report) })
	}}
}

type replicasRun struct {
	binary                    string
	counts                    []int
	objects, workspaces, size int
	rate                      float64
	duration, timeout         time.Duration
	atClient                  bool

	cluster    *process.Cluster
	shard      load.Target
	population load.Population
}

func (o *replicasRun) measure(ctx context.Context, cluster *process.Cluster, report *measure.Report) (err error) {
	if o.shard, err = load.NewTarget("shard", cluster.ShardKubeconfig(0), "base", true); err != nil {
		return err
	}
	o.cluster, o.population = cluster, load.Population{Objects: o.objects, Size: o.size, Run: newRun()}
	proxy, err := load.NewTarget("proxy", cluster.ProxyKubeconfig(), "base", true)
	if err != nil {
		return err
	}
	progress("creating %d workspaces and %d objects", o.workspaces, o.objects)
	_, o.population.Clusters, err = load.Workspaces(ctx, proxy.In("root"), load.WorkspaceOptions{Creators: 4, Count: o.workspaces, Timeout: o.timeout, Keep: true, Run: o.population.Run})
	if err != nil {
		return err
	}
	if err := load.Populate(ctx, o.shard, o.population); err != nil {
		return err
	}
	progress("an eighth of the objects moves")
	results, err := load.Eighth(ctx, o.shard)
	report.Add(results...)
	if err != nil {
		return err
	}
	var first used
	for n, count := range o.counts {
		u, err := o.replicas(ctx, count, false)
		if err != nil {
			return err
		}
		if n == 0 {
			first = u
		}
		report.Add(u.results(fmt.Sprintf("%d replicas", count), first)...)
	}
	if !o.atClient {
		return nil
	}
	count := o.counts[len(o.counts)-1]
	u, err := o.replicas(ctx, count, true)
	if err != nil {
		return err
	}
	report.Add(u.results(fmt.Sprintf("%d replicas that drop what is others' themselves", count), first)...)
	return nil
}

// used is what updates cost.
type used struct {
	updates          int64
	elapsed          time.Duration
	bytes, allBytes  int64
	processor, shard time.Duration
}

func (u used) results(of string, first used) []measure.Result {
	each := func(u used, n float64) float64 { return n / float64(u.updates) }
	seconds := u.elapsed.Seconds()
	cores := func(u used) float64 { return u.processor.Seconds() / u.elapsed.Seconds() }
	return []measure.Result{
		{
			Name: of + ": bytes of the worst", Target: "replica", Value: each(u, float64(u.bytes)), Unit: "B/update", Count: int(u.updates), Ratio: each(u, float64(u.bytes)) / each(first, float64(first.bytes)),
			Note: fmt.Sprintf("%.0f updates/s", float64(u.updates)/seconds),
		},
		{Name: of + ": bytes of all", Target: "replica", Value: each(u, float64(u.allBytes)), Unit: "B/update", Ratio: each(u, float64(u.allBytes)) / each(first, float64(first.allBytes))},
		{Name: of + ": processor of the worst", Target: "replica", Value: 1000 * cores(u), Unit: "millicores", Ratio: cores(u) / cores(first), Note: "compares if the updates per second do"},
		{Name: of + ": processor of the shard", Target: "shard", Value: each(u, float64(u.shard.Microseconds())), Unit: "µs/update", Ratio: each(u, float64(u.shard)) / each(first, float64(first.shard))},
	}
}

// replica is a child process.
type replica struct {
	*process.Process

	mu   sync.Mutex
	rest []byte
	last load.ReplicaState
	said string
}

// Write implements io.Writer: the process says what it has, a line each.
func (r *replica) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = append(r.rest, p...)
	for {
		line, rest, ok := bytes.Cut(r.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		if json.Unmarshal(line, &r.last) != nil {
			r.said = string(line)
		}
		r.rest = rest
	}
}

func (r *replica) state() (load.ReplicaState, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.said
}

// replicas starts as many, has objects be updated, and returns what that cost.
func (o *replicasRun) replicas(ctx context.Context, count int, atClient bool) (u used, err error) {
	progress("%d replicas", count)
	self, err := os.Executable()
	if err != nil {
		return u, fmt.Errorf("finding this program: %w", err)
	}
	var all []*replica
	defer func() {
		for _, r := range all {
			err = errors.Join(err, r.Stop(time.Minute))
		}
	}()
	for range count {
		r := &replica{}
		r.Process, err = process.Start(ctx, r, self, "replica", "--kubeconfig", o.cluster.ShardKubeconfig(0), "--context", "base",
			"--ring", "bench-replicas-"+o.population.Run, fmt.Sprintf("--at-client=%t", atClient))
		if err != nil {
			return u, err
		}
		all = append(all, r)
	}
	before, err := waitFor(ctx, all, func(states []load.ReplicaState) bool {
		objects := int64(0)
		for _, s := range states {
			if objects += s.Objects; s.Members != count {
				return false
			}
		}
		return objects >= int64(o.objects)
	})
	if err != nil {
		return u, err
	}
	processorBefore, shardBefore, err := o.processor(all)
	if err != nil {
		return u, err
	}
	progress("%d replicas: updates", count)
	began := time.Now()
	if u.updates, _, err = load.Updates(ctx, o.shard, o.population, load.WatchOptions{Rate: o.rate, Duration: o.duration, Size: o.size}); err != nil {
		return u, err
	}
	after, err := waitFor(ctx, all, func(states []load.ReplicaState) bool {
		updates := int64(0)
		for n, s := range states {
			updates += s.Updates - before[n].Updates
		}
		return updates >= u.updates
	})
	if err != nil {
		return u, err
	}
	u.elapsed = time.Since(began)
	processor, shard, err := o.processor(all)
	if err != nil {
		return u, err
	}
	u.shard = shard - shardBefore
	for n := range all {
		came := after[n].Bytes - before[n].Bytes
		u.bytes, u.allBytes = max(u.bytes, came), u.allBytes+came
		u.processor = max(u.processor, processor[n]-processorBefore[n])
	}
	return u, nil
}

// waitFor waits until replicas say what is wanted, and returns that.
func waitFor(ctx context.Context, all []*replica, wanted func([]load.ReplicaState) bool) ([]load.ReplicaState, error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		states := make([]load.ReplicaState, len(all))
		said := ""
		for n, r := range all {
			var more string
			if states[n], more = r.state(); more != "" {
				said = more
			}
		}
		if wanted(states) {
			return states, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("replicas have %+v, and say %q: %w", states, said, ctx.Err())
		case <-ticker.C:
		}
	}
}

// processor returns the processor time of replicas, and of the shard.
func (o *replicasRun) processor(all []*replica) ([]time.Duration, time.Duration, error) {
	of := make([]time.Duration, len(all))
	for n, r := range all {
		tree, err := process.Tree(r.PID())
		if err != nil {
			return nil, 0, err
		}
		of[n] = tree[0].Processor
	}
	shard, err := shardOf(o.cluster)
	return of, shard.Processor, err
}

// newReplica returns the subcommand that is one of the replicas.
func newReplica() *cobra.Command {
	var from targetFlags
	o := load.ReplicaOptions{}
	cmd := &cobra.Command{
		Use: "replica", Short: "Hold a part of all ConfigMaps, until interrupted", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := from.target()
			if err != nil {
				return err
			}
			return load.Replica(cmd.Context(), target, o, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	from.add(fs)
	fs.StringVar(&o.Ring, "ring", "bench-replicas", "the name that all replicas share")
	fs.BoolVar(&o.AtClient, "at-client", false, "ask for all objects, and drop those of others")
	return cmd
}
