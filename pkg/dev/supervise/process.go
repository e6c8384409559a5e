//go:build unix

package supervise

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// drainTimeout limits the wait for output after a process has ended, because its children may keep the pipes open.
const drainTimeout = time.Second

type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and its output was read
	err  error         // exit error, valid once done is closed
}

// startProcess must be called by a goroutine that is locked to its thread and outlives the process. Linux sends the
// parent-death signal when the thread that started a process ends.
func startProcess(c Component) (*process, error) {
	cmd := exec.Command(c.Path, c.Args...) //nolint:noctx // stopped by signals, because a context cannot order the shutdown
	cmd.Env = append(os.Environ(), lifelineEnv+"=1")
	cmd.Stdout = c.Output
	cmd.Stderr = c.Output
	cmd.SysProcAttr = sysProcAttr()
	cmd.WaitDelay = drainTimeout
	if _, err := cmd.StdinPipe(); err != nil { // the lifeline, which Start or Wait closes
		return nil, fmt.Errorf("starting %s: %w", c.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting: %w", err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmp.Or(cmd.Wait(), errors.New("exited without an error"))
	}()
	return p, nil
}

// signal sends sig to the process, and SIGKILL to its group. The process ID is not reused before Wait.
func (p *process) signal(sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return // it has ended
	}
	if sig == syscall.SIGKILL {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // fails if the group has ended
	}
}

// ExitCode returns the exit code of a process, or -1 if it was killed by a signal or never started.
func ExitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// lifelineEnv is set if the standard input of a process is its lifeline.
const lifelineEnv = "SHARDPLANE_LIFELINE"

// Lifeline returns a channel that is closed when the supervisor of this process has died, or nil without one. It must
// only be called once, because it reads the standard input: a pipe to which the supervisor never writes.
func Lifeline() <-chan struct{} {
	if os.Getenv(lifelineEnv) == "" {
		return nil
	}
	cut := make(chan struct{})
	go func() { // runs until the process ends
		defer close(cut)
		_, _ = io.Copy(io.Discard, os.Stdin) // an error also means the end
	}()
	return cut
}
