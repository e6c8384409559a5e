package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// process is a child process.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// startProcess starts a program.
func startProcess(ctx context.Context, out io.Writer, name string, arguments ...string) (*process, error) {
	// The context must not kill the process, because a cluster must be stopped in order.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), name, arguments...)
	cmd.Stdout, cmd.Stderr = out, out
	// In a process group of its own, the process does not receive the terminal's Ctrl-C.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// waitForFile waits until the file exists or the process ends.
func (p *process) waitForFile(ctx context.Context, path string) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-p.exited:
			return errors.Join(errors.New("the process ended before it was ready"), p.err)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		}
	}
}

// stop terminates the process, and kills its process group if it does not end.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping process %d: %w", p.pid(), err)
	}
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-p.exited:
		return p.err
	case <-timer.C:
	}
	killed := syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.exited
	return errors.Join(fmt.Errorf("process %d did not end and was killed", p.pid()), killed)
}

// startCluster starts a development cluster and returns the time until it is ready.
func startCluster(ctx context.Context, binary, dir string, shards int, out io.Writer) (*process, time.Duration, error) {
	ports, err := freePorts(ctx, shards+2)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	begin := time.Now()
	p, err := startProcess(ctx, out, binary, "dev", "--work-dir", dir, "--shards", strconv.Itoa(shards),
		"--front-proxy-port", strconv.Itoa(ports), "--cache-server-port", strconv.Itoa(ports+1), "--shard-port", strconv.Itoa(ports+2))
	if err != nil {
		return nil, 0, err
	}
	if err := p.waitForFile(ctx, filepath.Join(dir, ".kcp", "ready-to-test")); err != nil {
		return nil, 0, fmt.Errorf("starting the cluster: %w", errors.Join(err, p.stop()))
	}
	return p, time.Since(begin), nil
}

// freePorts returns the first of n consecutive ports that are free now.
func freePorts(ctx context.Context, n int) (int, error) {
	const attempts = 50
	for range attempts {
		first, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("looking for free ports: %w", err)
		}
		port := first.Addr().(*net.TCPAddr).Port
		free := true
		for i := 1; i < n && free; i++ {
			next, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port+i))
			if free = err == nil; free {
				free = next.Close() == nil
			}
		}
		if err := first.Close(); err == nil && free {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no %d consecutive free ports were found", n)
}
