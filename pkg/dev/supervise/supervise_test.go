package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const deadline = time.Minute

// TestMain makes the test binary a component if FAKE is set in the environment.
func TestMain(m *testing.M) {
	if mode := os.Getenv("FAKE"); mode != "" {
		os.Exit(fake(mode, os.Getenv("FAKE_DIR"), os.Getenv("FAKE_NAME")))
	}
	goleak.VerifyTestMain(m)
}

// fake is a component that writes files to dir for the tests.
func fake(mode, dir, name string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	starts := append1(filepath.Join(dir, name+".starts"), strconv.Itoa(os.Getpid()))
	kind, arg, _ := strings.Cut(mode, ":")
	n, _ := strconv.Atoi(arg)
	switch kind {
	case "exit":
		fmt.Fprintln(os.Stderr, "exits on purpose")
		return n
	case "flaky": // dies n times, then serves
		if starts <= n {
			return 1
		}
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		serve(dir, name)
		select {}
	case "lifeline":
		serve(dir, name)
		<-Lifeline()
		return 0
	case "supervisor":
		components := []Component{component(dir, "child", "serve"), component(dir, "stubborn", "stubborn")}
		if err := run(context.Background(), components, Config{}); err != nil {
			return 1
		}
		return 0
	}
	serve(dir, name)
	<-signals
	append1(filepath.Join(dir, "stops"), name)
	return 0
}

func serve(dir, name string) {
	ready := filepath.Join(dir, name+".ready")
	err := os.WriteFile(ready+".tmp", []byte(strconv.Itoa(os.Getpid())), 0o600)
	if err := errors.Join(err, os.Rename(ready+".tmp", ready)); err != nil {
		panic(err)
	}
}

// append1 appends a line to a file and returns the number of lines.
func append1(path, line string) int {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	_, err = fmt.Fprintln(f, line)
	if err := errors.Join(err, f.Close()); err != nil {
		panic(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return strings.Count(string(data), "\n")
}

// component returns a fake component. It is ready when the current process has reported it.
func component(dir, name, mode string) Component {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Component{
		Name:   name,
		Path:   "/usr/bin/env",
		Args:   []string{"FAKE=" + mode, "FAKE_DIR=" + dir, "FAKE_NAME=" + name, exe},
		Output: io.Discard,
		Ready: func(context.Context) error {
			ready, err := os.ReadFile(filepath.Join(dir, name+".ready"))
			if err != nil {
				return err
			}
			starts, err := os.ReadFile(filepath.Join(dir, name+".starts"))
			if err != nil {
				return err
			}
			if !strings.HasSuffix(string(starts), string(ready)+"\n") {
				return errors.New("not restarted yet")
			}
			return nil
		},
	}
}

type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) notify(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// await waits until n events of a kind were received for the component.
func (r *recorder) await(t *testing.T, name string, kind EventKind, n int) []Event {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.of(name, kind)) >= n }, deadline, time.Millisecond,
		"fewer than %d events of kind %d of %s", n, kind, name)
	return r.of(name, kind)
}

func (r *recorder) of(name string, kind EventKind) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Event
	for _, e := range r.events {
		if e.Component == name && e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// start runs components in the background. The returned function stops them and returns the result of Run.
// run adds the fields of a Config that are required.
func run(ctx context.Context, components []Component, config Config) error {
	config.StartTimeout = cmp.Or(config.StartTimeout, time.Minute)
	if config.Notify == nil {
		config.Notify = func(Event) {}
	}
	if config.AllReady == nil {
		config.AllReady = func() error { return nil }
	}
	return Run(ctx, components, config)
}

func start(t *testing.T, config Config, components ...Component) (stop func() error, r *recorder) {
	t.Helper()
	r = &recorder{}
	config.Notify = r.notify
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- run(ctx, components, config) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = stop() })
	return stop, r
}

func pidOf(t *testing.T, dir, name string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name+".ready"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(data))
	require.NoError(t, err)
	return pid
}

func requireExited(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, deadline, 10*time.Millisecond,
		"process %d still exists", pid)
}

func TestStopsInReverseOrderOfStages(t *testing.T) {
	dir := t.TempDir()
	var components []Component
	for stage, name := range []string{"first", "second", "third"} {
		c := component(dir, name, "serve")
		c.Stage = stage
		components = append(components, c)
	}
	allReady := make(chan struct{})
	stop, _ := start(t, Config{AllReady: func() error { close(allReady); return nil }}, components...)
	<-allReady
	require.NoError(t, stop())
	stops, err := os.ReadFile(filepath.Join(dir, "stops"))
	require.NoError(t, err)
	require.Equal(t, "third\nsecond\nfirst\n", string(stops))
	for _, c := range components {
		requireExited(t, pidOf(t, dir, c.Name))
	}
}

func TestRestartsWithBackoff(t *testing.T) {
	dir := t.TempDir()
	_, r := start(t, Config{firstPause: time.Millisecond}, component(dir, "c", "flaky:3"))
	ready := r.await(t, "c", Ready, 1)
	require.True(t, ready[0].Restart)
	var delays []time.Duration
	for _, e := range r.of("c", Exited) {
		require.EqualError(t, e.Err, "exit status 1")
		delays = append(delays, e.Delay)
	}
	require.Equal(t, []time.Duration{1e6, 2e6, 4e6}, delays)

	require.NoError(t, syscall.Kill(pidOf(t, dir, "c"), syscall.SIGKILL))
	r.await(t, "c", Ready, 2)
	exits := r.await(t, "c", Exited, 4)
	require.EqualError(t, exits[3].Err, "signal: killed")
}

func TestBackoffResetsAfterHealth(t *testing.T) {
	r := &runner{sup: &supervisor{config: Config{firstPause: 4 * time.Second}}}
	got := make([]time.Duration, 0, 7)
	for _, healthy := range []time.Duration{0, 0, time.Minute - 1, 0, 0, time.Minute, 0} {
		got = append(got, r.pause(healthy))
	}
	require.Equal(t, []time.Duration{4e9, 8e9, 16e9, 30e9, 30e9, 4e9, 8e9}, got)
}

func TestStartFailures(t *testing.T) {
	// The exit codes for wrong flags and bad data are final.
	for mode, starts := range map[string]int{"exit:1": 4, "exit:64": 1, "exit:65": 1} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			good := component(dir, "good", "serve")
			r := &recorder{}
			err := run(t.Context(), []Component{good, component(dir, "bad", mode)}, Config{
				firstPause: time.Millisecond, Notify: r.notify,
			})
			var failed *StartError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "bad", failed.Component)
			require.Len(t, r.of("bad", Starting), starts)
			pids, err := os.ReadFile(filepath.Join(dir, "good.starts"))
			if err == nil { // it may have been stopped before it wrote the file
				pid, err := strconv.Atoi(strings.TrimSpace(string(pids)))
				require.NoError(t, err)
				requireExited(t, pid)
			}
		})
	}

	t.Run("missing program", func(t *testing.T) {
		c := component(t.TempDir(), "c", "serve")
		c.Path = "/no/such/program"
		err := run(t.Context(), []Component{c}, Config{firstPause: time.Millisecond})
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("start timeout", func(t *testing.T) {
		c := component(t.TempDir(), "c", "serve")
		c.Ready = func(context.Context) error { return errors.New("still starting") }
		r := &recorder{}
		err := run(t.Context(), []Component{c}, Config{StartTimeout: 300 * time.Millisecond, slowAfter: time.Millisecond, Notify: r.notify})
		require.EqualError(t, err, "c did not start: not ready after 300ms: still starting")
		require.EqualError(t, r.of("c", Waiting)[0].Err, "still starting")
	})
	t.Run("failing AllReady", func(t *testing.T) {
		full := errors.New("disk full")
		err := run(t.Context(), []Component{component(t.TempDir(), "c", "serve")}, Config{AllReady: func() error { return full }})
		require.ErrorIs(t, err, full)
	})
}

func TestKillsUnresponsiveComponents(t *testing.T) {
	t.Run("after the stop timeout", func(t *testing.T) {
		dir := t.TempDir()
		stop, r := start(t, Config{stopTimeout: 50 * time.Millisecond}, component(dir, "c", "stubborn"))
		r.await(t, "c", Ready, 1)
		require.NoError(t, stop())
		require.Len(t, r.of("c", Killed), 1)
		requireExited(t, pidOf(t, dir, "c"))
	})
	t.Run("when forced", func(t *testing.T) {
		dir := t.TempDir()
		force := make(chan struct{})
		low, high := component(dir, "low", "stubborn"), component(dir, "high", "stubborn")
		high.Stage = 1
		stop, r := start(t, Config{stopTimeout: time.Hour, Force: force}, low, high)
		r.await(t, "low", Ready, 1)
		r.await(t, "high", Ready, 1)
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		r.await(t, "high", Stopping, 1)
		close(force)
		require.NoError(t, <-stopped)
		require.Len(t, r.of("low", Killed), 1)
		require.Len(t, r.of("high", Killed), 1)
	})
}

func TestStopsWhileItStarts(t *testing.T) {
	dir := t.TempDir()
	c := component(dir, "c", "serve")
	c.Ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	flaky := component(dir, "flaky", "exit:1")
	stop, r := start(t, Config{firstPause: time.Hour}, c, flaky)
	r.await(t, "c", Starting, 1)
	r.await(t, "flaky", Exited, 1)
	require.NoError(t, stop())
}

func TestNoOrphansOfAKilledSupervisor(t *testing.T) {
	dir := t.TempDir()
	c := component(dir, "supervisor", "supervisor")
	cmd := exec.Command(c.Path, c.Args...)
	require.NoError(t, cmd.Start())
	var pids []int
	for _, name := range []string{"child", "stubborn"} {
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(dir, name+".ready"))
			return err == nil
		}, deadline, 10*time.Millisecond)
		pids = append(pids, pidOf(t, dir, name))
	}
	require.NoError(t, cmd.Process.Kill())
	require.EqualError(t, cmd.Wait(), "signal: killed")
	for _, pid := range pids {
		requireExited(t, pid)
	}
}

func TestLifeline(t *testing.T) {
	require.Nil(t, Lifeline(), "this process has no supervisor")

	dir := t.TempDir()
	c := component(dir, "c", "lifeline")
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(os.Environ(), lifelineEnv+"=1")
	lifeline, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return c.Ready(t.Context()) == nil }, deadline, 10*time.Millisecond)
	require.NoError(t, lifeline.Close())
	require.NoError(t, cmd.Wait())
}

func TestSeparateProcessGroup(t *testing.T) {
	dir := t.TempDir()
	_, r := start(t, Config{}, component(dir, "c", "serve"))
	r.await(t, "c", Ready, 1)
	pid := pidOf(t, dir, "c")
	group, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, group)
}
