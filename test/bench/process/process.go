package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a running child process.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// Start starts a program. Its output goes to out.
func Start(ctx context.Context, out io.Writer, name string, args ...string) (*Process, error) {
	// The context must not kill it: a cluster is stopped in order.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own, so that a Ctrl-C at the terminal reaches only the
	// benchmark, which then stops what it started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// PID returns the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Arguments returns the command line of a process, so that it can be started again. It needs Linux' /proc.
func Arguments(pid int) ([]string, error) {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil, fmt.Errorf("reading the command line of process %d: %w", pid, err)
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"), nil
}

// pollInterval is how exactly the time of a start is measured.
const pollInterval = 5 * time.Millisecond

// WaitForFile waits until the file exists and is not empty or until the process
// ends.
func (p *Process) WaitForFile(ctx context.Context, path string, empty bool) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if info, err := os.Stat(path); err == nil && (empty || info.Size() > 0) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-p.exited:
			return fmt.Errorf("the process ended before it was ready: %w", errOr(p.err, errors.New("exit status 0")))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		}
	}
}

// Stop asks the process to end and waits; after the timeout it kills it and
// says so.
func (p *Process) Stop(timeout time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping process %d: %w", p.PID(), err)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.exited:
		return p.err
	case <-timer.C:
	}
	killErr := syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.exited
	return errors.Join(fmt.Errorf("process %d did not end within %s and was killed", p.PID(), timeout), killErr)
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}
