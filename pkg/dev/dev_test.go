package dev

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/test/ports"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const deadline = time.Minute

// testOptions returns options for a cluster of fakes on free ports.
func testOptions(t *testing.T, changes ...func(*Options)) CompletedOptions {
	t.Helper()
	o := NewOptions()
	for _, change := range changes {
		change(o)
	}
	o.WorkDir = t.TempDir()
	first := ports.Free(t, 4)
	o.ShardPort, o.FrontProxyPort, o.CacheServerPort = first, first+2, first+3
	o.StartTimeout = deadline
	completed, err := o.Complete()
	require.NoError(t, err)
	require.NoError(t, completed.Validate())
	return completed
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

type running struct {
	out    *output
	cancel func()
	result chan error
}

func startCluster(t *testing.T, o CompletedOptions, force <-chan struct{}) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{out: &output{}, cancel: cancel, result: make(chan error, 1)}
	var done sync.WaitGroup
	done.Go(func() { r.result <- RunCluster(ctx, o, r.out, force) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return r
}

// startReady starts a cluster, and waits until it is ready.
func startReady(t *testing.T, o CompletedOptions) *running {
	t.Helper()
	r := startCluster(t, o, nil)
	r.await(t, "Ctrl-C stops all components", 1)
	return r
}

// await waits until the output contains text n times.
func (r *running) await(t *testing.T, text string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(r.out.String(), text) >= n }, deadline, 10*time.Millisecond,
		"output does not contain %d times %q", n, text)
}

func (r *running) stop() error {
	r.cancel()
	return <-r.result
}

// componentPids returns the PIDs of the components of a working directory.
func componentPids(workDir string) map[string]int {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	pids := map[string]int{}
	for _, path := range found {
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, []byte("="+workDir+"/")) {
			continue
		}
		args := strings.Split(string(data), "\x00")
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || len(args) < 3 {
			continue
		}
		name := args[1]
		if name == "shard" {
			name = strings.TrimPrefix(args[2], "--name=")
		}
		pids[name] = pid
	}
	return pids
}

// needProc skips a test if processes cannot be listed.
func needProc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("needs /proc")
	}
}

func requireNothingLeft(t *testing.T, o CompletedOptions) {
	t.Helper()
	require.Eventually(t, func() bool { return len(componentPids(o.WorkDir)) == 0 }, deadline, 10*time.Millisecond)
	requireUnlocked(t, layout(o.WorkDir))
	require.NoFileExists(t, layout(o.WorkDir).shared(readyFile))
}

func requireUnlocked(t *testing.T, files layout) {
	t.Helper()
	lock, err := acquireLock(files.shared(lockFile))
	require.NotErrorIs(t, err, errLocked)
	if err == nil { // otherwise there is no such directory
		require.NoError(t, lock.Unlock())
	}
}

var (
	durations  = regexp.MustCompile(`\d+(\.\d)? s\b`)
	readyLines = regexp.MustCompile(`(?m)(^  \S+ +ready after .*\n)+`)
)

// golden compares the output with a golden file. It replaces variable parts and sorts the components that became ready.
func golden(t *testing.T, name string, o CompletedOptions, got string) {
	t.Helper()
	got = strings.ReplaceAll(got, o.WorkDir, "WORKDIR")
	for _, p := range o.ports() {
		got = strings.ReplaceAll(got, fmt.Sprintf("127.0.0.1:%d", p.port), "127.0.0.1:PORT-OF-"+strings.ReplaceAll(p.component, " ", "-"))
	}
	got = durations.ReplaceAllString(got, "N s")
	got = readyLines.ReplaceAllStringFunc(got, func(block string) string {
		lines := strings.SplitAfter(strings.TrimSuffix(block, "\n"), "\n")
		lines[len(lines)-1] += "\n"
		slices.Sort(lines)
		return strings.Join(lines, "")
	})
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to write it")
	require.Equal(t, string(want), got)
}

func TestStartRestartStop(t *testing.T) {
	needProc(t)
	o := testOptions(t)
	files := layout(o.WorkDir)
	require.NoError(t, os.Mkdir(files.shared(""), 0o700))

	r := startReady(t, o)
	require.FileExists(t, files.shared(readyFile))
	pids := componentPids(o.WorkDir)
	require.Len(t, pids, 4)

	require.NoError(t, syscall.Kill(pids["shard-1"], syscall.SIGKILL))
	r.await(t, "shard-1       ready", 2)
	require.NoError(t, r.stop())
	requireNothingLeft(t, o)
	golden(t, "start", o, r.out.String())

	log, err := os.ReadFile(files.shard(1, "shard-1.log"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(log), "shard-1 is up\n"))

	t.Run("restart in the same directory", func(t *testing.T) {
		before := readAll(t, o.WorkDir)
		r := startReady(t, o)
		require.NoError(t, r.stop())
		golden(t, "again", o, r.out.String())
		require.Equal(t, before, readAll(t, o.WorkDir), "files must not change")
	})
	t.Run("with fewer shards", func(t *testing.T) {
		require.NoError(t, os.Mkdir(files.shard(1, "data"), 0o700)) // the fakes do not create it
		fewer := o
		fewer.Shards = 1
		r := startReady(t, fewer)
		require.Contains(t, r.out.String(), "Note: an earlier run had more shards: workspaces on shard-1 to shard-1 are unavailable (503) until --shards is 2 again, and so are workspaces that do not exist")
	})
}

// readAll returns the contents of all files except logs.
func readAll(t *testing.T, dir string) map[string]string {
	t.Helper()
	contents := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".log") {
			return err
		}
		data, err := os.ReadFile(path)
		contents[path] = string(data)
		return err
	}))
	require.NotEmpty(t, contents)
	return contents
}

func TestVerbose(t *testing.T) {
	o := testOptions(t)
	o.Verbose = true
	r := startReady(t, o)
	require.NoError(t, r.stop())
	require.Contains(t, r.out.String(), "root         | root is up\n")
	require.Contains(t, r.out.String(), "cache-server | cache-server is up\n")
}

func TestCrashDuringFirstStart(t *testing.T) {
	o := testOptions(t)
	t.Setenv(faultEnv, "root=once:"+t.TempDir())
	r := startReady(t, o)
	require.Contains(t, r.out.String(), "root          exited (exit status 1), restarting in 0.5 s (log: "+layout(o.WorkDir).shard(0, "root.log")+")\n"+
		"                first start fails\n")
	require.Contains(t, r.out.String(), "  root          restarting\n")
}

func TestCannotStart(t *testing.T) {
	for name, test := range map[string]struct{ fault, want string }{
		"wrong flags":     {"shard-1=usage", "shard-1 did not start: unknown flag (log: WORKDIR/.kcp-1/shard-1.log)"},
		"always crashing": {"front-proxy=panic", "front-proxy did not start: panic: on purpose (log: WORKDIR/.kcp/front-proxy.log)"},
		"never ready":     {"root=never-ready", "root did not start: not ready after 2s: waiting for informer-sync, dreams (log: WORKDIR/.kcp-0/root.log)"},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			if name == "never ready" {
				o.StartTimeout = 2 * time.Second
			}
			t.Setenv(faultEnv, test.fault)
			err := RunCluster(t.Context(), o, &output{}, nil)
			var failed *supervise.StartError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, test.want, strings.ReplaceAll(err.Error(), o.WorkDir, "WORKDIR"))
			requireNothingLeft(t, o)
		})
	}
}

func TestForce(t *testing.T) {
	o := testOptions(t)
	t.Setenv(faultEnv, "shard-1=stubborn")
	force := make(chan struct{})
	r := startCluster(t, o, force)
	r.await(t, "Ctrl-C stops all components", 1)
	r.cancel()
	r.await(t, "front-proxy   stopped", 1) // then shard-1 is stopped
	close(force)
	require.ErrorIs(t, <-r.result, ErrForced)
	requireNothingLeft(t, o)
}

func TestKilledDevLeavesNoProcesses(t *testing.T) {
	needProc(t)
	o := testOptions(t)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program, "dev", "--work-dir="+o.WorkDir, "--shard-port="+strconv.Itoa(o.ShardPort),
		"--front-proxy-port="+strconv.Itoa(o.FrontProxyPort), "--cache-server-port="+strconv.Itoa(o.CacheServerPort))
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	r := &running{out: out}
	r.await(t, "Ctrl-C stops all components", 1)
	pids := componentPids(o.WorkDir)
	delete(pids, "dev")
	require.Len(t, pids, 4)

	t.Run("second process in the same directory", func(t *testing.T) {
		other := o
		other.ShardPort = ports.Free(t, 4)
		other.FrontProxyPort, other.CacheServerPort = other.ShardPort+2, other.ShardPort+3
		err := RunCluster(t.Context(), other, &output{}, nil)
		require.EqualError(t, err, fmt.Sprintf("%s is in use by another shardplane dev (pid %d): stop that one or pass another --work-dir",
			o.WorkDir, cmd.Process.Pid))
		require.FileExists(t, layout(o.WorkDir).shared(readyFile))
	})

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	for _, pid := range pids {
		require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, deadline, 10*time.Millisecond)
	}

	again := startReady(t, o)
	require.NoError(t, again.stop())
	requireNothingLeft(t, o)
}

// TestLogLinesAreEscaped verifies that tenants cannot control the terminal through logs.
func TestLogLinesAreEscaped(t *testing.T) {
	var out bytes.Buffer
	shown := &terminal{out: &out}
	shown.log("root", "a\x1b[2J\u009b31m")
	shown.note("b\x1b[2J")
	require.Equal(t, " | a\\x1b[2J\\u009b31m\nNote: b\\x1b[2J\n", strings.TrimPrefix(out.String(), "root"))
}
