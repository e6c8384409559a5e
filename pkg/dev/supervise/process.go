//go:build unix

package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// drainTimeout bounds how long output of a process that has ended is awaited;
// something it started may hold its pipes open.
const drainTimeout = time.Second

// spawner starts processes, all from one operating system thread, which lives
// as long as the spawner: Linux sends the parent-death signal when the thread
// that started a process ends, and Go ends threads as it likes.
type spawner struct {
	requests chan func()
	done     chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for start := range s.requests {
			start()
		}
	}()
	return s
}

// close ends the spawner. All its processes must have ended.
func (s *spawner) close() {
	close(s.requests)
	<-s.done
}

// process is a started process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and its output is read
	err  error         // how it ended; valid once done is closed
}

// start starts a process for c.
func (s *spawner) start(c Component) (*process, error) {
	cmd := exec.Command(c.Path, c.Args...) //nolint:noctx // ended by terminate and kill, which a context cannot order
	cmd.Env = append(os.Environ(), lifelineEnv+"=1")
	cmd.Stdout = c.Output
	cmd.Stderr = c.Output
	cmd.SysProcAttr = sysProcAttr()
	cmd.WaitDelay = drainTimeout
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	started := make(chan error)
	s.requests <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start: %w", err), closeUnused(lifeline))
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait() // closes the lifeline as well
		if p.err == nil {
			p.err = errors.New("it ended by itself, without an error")
		}
	}()
	return p, nil
}

// closeUnused closes the pipe of a process that did not start; cmd.Start may
// have done so already.
func closeUnused(c io.Closer) error {
	if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// terminate asks the process to end. That it has ended already is no error,
// and done tells of it.
func (p *process) terminate() { p.signal(syscall.SIGTERM) }

// kill ends the process and what it started.
func (p *process) kill() { p.signal(syscall.SIGKILL) }

// signal sends sig to the process, and SIGKILL to its whole group. It must not
// reach a foreign process that got the same id: that cannot be while the
// process is not waited for, and os.Process knows whether it is.
func (p *process) signal(sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return // it has ended
	}
	if sig == syscall.SIGKILL {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // the leader is gone already where the group is
	}
}

// ExitCode returns the exit code of a process that ended with err, and -1 for
// one that was ended by a signal or never started.
func ExitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}
