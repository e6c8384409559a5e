package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
	"github.com/shardplane/shardplane/test/bench/measure"
)

// What the process of a flood is told, a line each, and what it answers. At the
// end of its input it prints the result and ends.
const (
	tellStart, tellStop       = "start", "stop"
	answerStarted, answerStop = "started", "stopped"
)

// newFlood returns the subcommand that runs a flood for another process.
func newFlood() *cobra.Command {
	var from targetFlags
	var cluster string
	var niceness int
	o := load.FloodOptions{}
	cmd := &cobra.Command{
		Use:    "flood",
		Short:  "Flood a logical cluster, as told by standard input",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := from.target()
			if err != nil {
				return err
			}
			if err := giveWay(niceness); err != nil {
				return err
			}
			flood, err := load.NewFlood(target.In(cluster), o)
			if err != nil {
				return err
			}
			return obey(cmd.Context(), flood, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	from.add(fs)
	fs.StringVar(&cluster, "cluster", "root", "logical cluster to flood")
	fs.IntVar(&niceness, "nice", 0, "niceness of the process's session")
	fs.IntVar(&o.Clients, "clients", 64, "clients that send one request after the other")
	fs.IntVar(&o.Size, "size", 512, "bytes of data in an object")
	fs.StringVar(&o.Run, "run", "flood", "mark of the objects of this run")
	return cmd
}

// obey floods as often and as long as it is told.
func obey(ctx context.Context, flood *load.Flood, in io.Reader, out io.Writer) error {
	stop := func() {}
	defer func() { stop() }()
	orders := bufio.NewScanner(in)
	for orders.Scan() {
		switch orders.Text() {
		case tellStart:
			stop()
			stop = wave(ctx, flood, func() { fmt.Fprintln(out, answerStarted) })
		case tellStop:
			stop()
			stop = func() {}
			fmt.Fprintln(out, answerStop)
		default:
			return fmt.Errorf("unknown order %q", orders.Text())
		}
	}
	stop()
	stop = func() {}
	result, err := flood.Result()
	return errors.Join(orders.Err(), err, flood.Clean(ctx), json.NewEncoder(out).Encode(result))
}

// wave starts a wave and returns what ends it.
func wave(ctx context.Context, flood *load.Flood, begun func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { flood.Wave(ctx, begun) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// floodProcess is a flood in a process of its own, so that its clients do not
// share a scheduler with the one that is measured.
type floodProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

var _ load.Disturbance = &floodProcess{}

// autogroup is where Linux, if it groups processes by session, takes the
// niceness of a whole session from: that of a process counts within it only.
const autogroup = "/proc/self/autogroup"

// giveWay lets other sessions' processes go before this one's.
func giveWay(niceness int) error {
	err := os.WriteFile(autogroup, []byte(strconv.Itoa(niceness)), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("giving way to other processes: %w", err)
	}
	return nil
}

// politely returns a command that runs a subcommand of this program, which has the flag --nice and
// calls giveWay, as a process that others go before.
func politely(ctx context.Context, niceness int, subcommand string, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the program to run again: %w", err)
	}
	nice := strconv.Itoa(niceness)
	args = append([]string{"nice", "-n", nice, self, subcommand, "--nice", nice}, args...)
	if niceness == 0 {
		args = args[3:]
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// startFlood starts the process, which does nothing yet.
func startFlood(ctx context.Context, niceness int, from targetFlags, cluster string, o load.FloodOptions) (*floodProcess, error) {
	cmd, err := politely(ctx, niceness, "flood", "--name", from.name, "--kubeconfig", from.kubeconfig, "--context", from.context,
		"--plain="+strconv.FormatBool(from.plain), "--cluster", cluster,
		"--clients", strconv.Itoa(o.Clients), "--size", strconv.Itoa(o.Size), "--run", o.Run)
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the flood's process: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the flood's process: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the flood's process: %w", err)
	}
	return &floodProcess{cmd: cmd, in: in, out: bufio.NewScanner(out)}, nil
}

// Start implements load.Disturbance.
func (p *floodProcess) Start() error { return p.tell(tellStart, answerStarted) }

// Stop implements load.Disturbance.
func (p *floodProcess) Stop() error { return p.tell(tellStop, answerStop) }

func (p *floodProcess) tell(order, answer string) error {
	if _, err := fmt.Fprintln(p.in, order); err != nil {
		return fmt.Errorf("the flood's process does not take %q: %w", order, err)
	}
	if !p.out.Scan() || p.out.Text() != answer {
		return fmt.Errorf("the flood's process answers %q to %q", p.out.Text(), order)
	}
	return nil
}

// End ends the process and returns what it has sent.
func (p *floodProcess) End() (measure.Result, error) {
	var result measure.Result
	closed := p.in.Close()
	var rest strings.Builder
	for p.out.Scan() {
		rest.WriteString(p.out.Text())
	}
	if err := errors.Join(closed, p.cmd.Wait()); err != nil {
		return result, fmt.Errorf("the flood's process failed: %w", err)
	}
	if err := json.Unmarshal([]byte(rest.String()), &result); err != nil {
		return result, fmt.Errorf("the result of the flood's process: %w", err)
	}
	return result, nil
}
