package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
)

// newIdle measures what servers do that are left alone.
func newIdle() *workload {
	var pid int
	var duration time.Duration
	cmd := &cobra.Command{Use: "idle", Short: "Leave a process and its children alone and measure what they do all the same"}
	cmd.Flags().IntVar(&pid, "pid", 0, "the process, such as that of shardplane dev (required)")
	cmd.Flags().DurationVar(&duration, "duration", time.Minute, "how long to leave them alone")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		if pid <= 0 {
			return errors.New("--pid is required: for a development cluster, that of `shardplane dev`")
		}
		before, err := process.Tree(pid)
		if err != nil {
			return err
		}
		start := time.Now()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(duration):
		}
		after, err := process.Tree(pid)
		if err != nil {
			return err
		}
		report.Add(idleResults(before, after, time.Since(start))...)
		return nil
	}}
}

// idleResults returns the cores that each process and all together have used.
// Processes that were not there before do not count.
func idleResults(before, after []process.Memory, took time.Duration) []measure.Result {
	known := map[int]process.Memory{}
	for _, p := range before {
		known[p.PID] = p
	}
	var results []measure.Result
	add := func(target string, processor time.Duration, wakeups int64) {
		results = append(results, measure.Result{
			Name: "idle", Target: target, Value: 1000 * processor.Seconds() / took.Seconds(), Unit: "millicores",
			Note: fmt.Sprintf("%.0f wake-ups/s", float64(wakeups)/took.Seconds()),
		})
	}
	var processor time.Duration
	var wakeups int64
	for _, p := range after {
		if was, ok := known[p.PID]; ok {
			add(p.Command, p.Processor-was.Processor, p.Wakeups-was.Wakeups)
			processor += p.Processor - was.Processor
			wakeups += p.Wakeups - was.Wakeups
		}
	}
	add("all processes", processor, wakeups)
	return results
}
