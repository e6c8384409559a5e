package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Memory is what one process takes of the machine.
type Memory struct {
	PID int
	// Command is the program's name and its first argument, which for Shardplane
	// is the component, and the component's name if it has one.
	Command string
	// Resident and Proportional are in bytes. Pages that processes share, such
	// as the program itself, count fully in the first and in parts in the second.
	Resident, Proportional int64
	// Anonymous are those resident bytes that are in no file, such as the heap; etcd maps
	// its database as a file.
	Anonymous int64
	// Processor is the time that it has computed since its start, Wakeups how
	// often its threads have waited for something and gone on.
	Processor time.Duration
	Wakeups   int64
}

// tick is the unit in which Linux counts processor time.
const tick = 10 * time.Millisecond

// Tree returns the memory of a process and its descendants. It needs Linux'
// /proc.
func Tree(root int) ([]Memory, error) {
	children, err := childrenOf()
	if err != nil {
		return nil, err
	}
	var tree []Memory
	for pending := []int{root}; len(pending) > 0; pending = pending[1:] {
		memory, err := read(pending[0])
		if err != nil {
			return nil, fmt.Errorf("reading the memory of process %d: %w", pending[0], err)
		}
		tree = append(tree, memory)
		pending = append(pending, children[pending[0]]...)
	}
	return tree, nil
}

// childrenOf returns the children of every process.
func childrenOf() (map[int][]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return nil, fmt.Errorf("no processes in /proc: memory can only be measured on Linux")
	}
	children := map[int][]int{}
	for _, name := range stats {
		content, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The name in parentheses may hold anything; the parent is the second
		// field after the last of them.
		_, rest, _ := cutLast(string(content), ")")
		fields := strings.Fields(rest)
		pid, pidErr := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if pidErr != nil || len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return children, nil
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

func read(pid int) (Memory, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	arguments, err := Arguments(pid)
	if err != nil {
		return Memory{}, err
	}
	rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return Memory{}, err
	}
	memory := Memory{PID: pid, Command: commandName(arguments)}
	for line := range strings.Lines(string(rollup)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return Memory{}, err
		}
		switch fields[0] {
		case "Rss:":
			memory.Resident = kilobytes << 10
		case "Pss:":
			memory.Proportional = kilobytes << 10
		case "Anonymous:":
			memory.Anonymous = kilobytes << 10
		}
	}
	if memory.Processor, err = processorTime(dir); err != nil {
		return Memory{}, err
	}
	memory.Wakeups, err = wakeups(dir)
	return memory, err
}

// processorTime returns the user and system time of the process of a directory.
func processorTime(dir string) (time.Duration, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := cutLast(string(stat), ")")
	fields := strings.Fields(rest)
	const user = 11 // after the name, and the system's is next
	if len(fields) < user+2 {
		return 0, fmt.Errorf("%s/stat has too few fields", dir)
	}
	var ticks int64
	for _, field := range fields[user : user+2] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// wakeups returns how often the threads of the process of a directory have
// waited.
func wakeups(dir string) (sum int64, err error) {
	threads, err := filepath.Glob(filepath.Join(dir, "task", "*", "status"))
	if err != nil {
		return 0, err
	}
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(status)) {
			if count, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				n, err := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
				if err != nil {
					return 0, err
				}
				sum += n
			}
		}
	}
	return sum, nil
}

// commandName shortens a command line to the program and its subcommand.
func commandName(args []string) string {
	words := []string{filepath.Base(args[0])}
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		words = append(words, args[1])
	}
	for _, arg := range args {
		if component, ok := strings.CutPrefix(arg, "--name="); ok {
			words = append(words, component)
		}
	}
	return strings.Join(words, " ")
}
