package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is the resource usage of a process, or of a tree of processes.
type usage struct {
	pid int
	// command is the name of the program with its subcommand and its flag --name.
	command string
	// proportional is resident memory in bytes, with shared pages counted once. anonymous is the
	// part of resident memory that is not mapped from a file, e.g. the heap.
	proportional, anonymous int64
	processor               time.Duration
}

// measureIdle measures CPU and memory of unused servers.
func (o *options) measureIdle(ctx context.Context, to *column, s server) error {
	if s.pid == 0 {
		return nil
	}
	sum, err := o.quietUsage(ctx, s)
	if err != nil {
		return err
	}
	processes, err := processTree(s.pid)
	if err != nil {
		return err
	}
	var note []string
	if len(processes) > 1 {
		for _, p := range processes {
			note = append(note, fmt.Sprintf("%s %.0f", p.command, mebibytes(p.proportional)))
		}
	}
	to.add("idle memory, shared pages counted once", "MiB", mebibytes(sum.proportional), strings.Join(note, ", "))
	return o.measureIdleCPU(ctx, to, "idle CPU", s.pid)
}

func (o *options) measureIdleCPU(ctx context.Context, to *column, work string, pid int) error {
	before, err := usageOf(pid)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := sleep(ctx, o.idle); err != nil {
		return err
	}
	after, err := usageOf(pid)
	if err != nil {
		return err
	}
	to.add(work, "cores", (after.processor-before.processor).Seconds()/time.Since(begin).Seconds(), "")
	return nil
}

// quietUsage returns the usage of the server after the quiet period, if its process ID is set.
func (o *options) quietUsage(ctx context.Context, s server) (usage, error) {
	if s.pid == 0 {
		return usage{}, nil
	}
	if err := sleep(ctx, o.quietPeriod); err != nil {
		return usage{}, err
	}
	return usageOf(s.pid)
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// usageOf returns the sum over a process and its descendants.
func usageOf(root int) (usage, error) {
	processes, err := processTree(root)
	sum := usage{pid: root}
	for _, p := range processes {
		sum.proportional += p.proportional
		sum.anonymous += p.anonymous
		sum.processor += p.processor
	}
	return sum, err
}

// processTree returns a process and its descendants. It requires the /proc of Linux.
func processTree(root int) ([]usage, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return nil, errors.New("no processes in /proc: CPU and memory can only be measured on Linux")
	}
	children := map[int][]int{}
	for _, name := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			continue
		}
		if fields := statFields(pid); len(fields) > 1 { // otherwise the process has ended
			if parent, err := strconv.Atoi(fields[1]); err == nil {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	var tree []usage
	for pending := []int{root}; len(pending) > 0; pending = pending[1:] {
		p, err := readUsage(pending[0])
		if err != nil {
			return nil, fmt.Errorf("reading the usage of process %d: %w", pending[0], err)
		}
		tree = append(tree, p)
		pending = append(pending, children[pending[0]]...)
	}
	return tree, nil
}

// statFields returns the fields of /proc/<pid>/stat after the name of the program, which is in
// parentheses and may contain spaces: state, parent, ...
func statFields(pid int) []string {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
}

func readUsage(pid int) (usage, error) {
	p := usage{pid: pid}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	arguments, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return p, err
	}
	p.command = commandName(strings.Split(strings.TrimRight(string(arguments), "\x00"), "\x00"))
	memory, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(memory)) {
		// Fields that are not numbers are in the first line only.
		fields := strings.Fields(line)
		switch kilobytes, _ := strconv.ParseInt(fields[1], 10, 64); fields[0] {
		case "Pss:":
			p.proportional = kilobytes << 10
		case "Anonymous:":
			p.anonymous = kilobytes << 10
		}
	}
	// User and system time, in ticks of 10 ms.
	fields := statFields(pid)
	if len(fields) < 13 {
		return p, os.ErrProcessDone
	}
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return p, fmt.Errorf("reading %s/stat: %w", dir, err)
		}
		p.processor += time.Duration(ticks) * 10 * time.Millisecond
	}
	return p, nil
}

// commandName shortens a command line, e.g. to "shardplane shard root".
func commandName(arguments []string) string {
	words := []string{filepath.Base(arguments[0])}
	if len(arguments) > 1 && !strings.HasPrefix(arguments[1], "-") {
		words = append(words, arguments[1])
	}
	for _, argument := range arguments {
		if name, ok := strings.CutPrefix(argument, "--name="); ok {
			words = append(words, name)
		}
	}
	return strings.Join(words, " ")
}
