package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/bench/reference"
)

// startReference runs the reference server in this process and returns its kubeconfig.
func startReference(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- reference.Run(ctx, reference.Options{Dir: t.TempDir(), Ready: func(kubeconfig string) { ready <- kubeconfig }})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	select {
	case kubeconfig := <-ready:
		return kubeconfig
	case err := <-done:
		done <- err
		require.NoError(t, err, "the reference server ended")
	case <-time.After(time.Minute):
		require.Fail(t, "the reference server is not ready")
	}
	return ""
}

func runCommand(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetOut(&out)
	cmd.SetArgs(arguments)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestServer runs the workloads that do not require logical clusters.
func TestServer(t *testing.T) {
	out, err := runCommand(t, "server", "--plain", "--name", referenceColumn, "--kubeconfig", startReference(t),
		"--objects", "25", "--object-size", "64", "--page-size", "4", "--repeat", "2", "--duration", "800ms", "--writers", "2", "--readers", "2")
	require.NoError(t, err)
	for _, work := range []string{
		"writes, 2 clients", "GET, 2 clients, p50, direct", "GET, 2 clients, p99, direct",
		"wildcard LIST, 25 ConfigMaps, protobuf", "wildcard LIST, 25 ConfigMaps, JSON", "the same in pages of 4, JSON, relative to the whole list",
	} {
		require.Regexp(t, `(?m)^\| `+work+` +\| [0-9.]*[1-9]`, out)
	}
}

// TestPages checks that a list in pages is read completely.
func TestPages(t *testing.T) {
	target, err := newTarget(startReference(t), "", false)
	require.NoError(t, err)
	client, err := target.client()
	require.NoError(t, err)
	const objects, size, limit = 10, 1000, 3
	for n := range objects {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("run", n, size), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	whole, err := readList(t.Context(), client.RESTClient(), "application/json", 0)
	require.NoError(t, err)
	require.Greater(t, whole, int64(objects*size))
	pages, err := readList(t.Context(), client.RESTClient(), "application/json", limit)
	require.NoError(t, err)
	require.Greater(t, pages, whole, "each page has metadata of its own")
	require.NoError(t, removeRun(t.Context(), client, "run"))
}

func TestMistakes(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"server"}, "--kubeconfig is required"},
		{[]string{"server", "--kubeconfig", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"server", "--kubeconfig", "x", "--objects", "0"}, "must be positive"},
		{[]string{"all", "--workloads", "idle,rest"}, `unknown workload "rest"`},
		{[]string{"all", "--binary", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"reference"}, "--dir is required"},
		{[]string{"everything"}, "unknown command"},
	} {
		_, err := runCommand(t, test.arguments...)
		require.ErrorContains(t, err, test.want, test.arguments)
	}
}

func TestReport(t *testing.T) {
	table := &report{}
	table.column(referenceColumn).add("reads", "/s", 200, "not shown")
	measured := table.column("Shardplane")
	measured.add("reads", "/s", 150, "shown")
	measured.add("reads", "ms", 3, "")
	measured.add("start", "s", 3.14159, "")
	var out strings.Builder
	require.NoError(t, table.print(&out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, []string{
		"| work  | reference | Shardplane | ratio | unit | note |",
		"| ---   | ---       | ---        | ---   | ---  | --- |",
		"| reads | 200       | 150        | 0.75  | /s   | shown |",
		"| reads |           | 3.00       |       | ms   |  |",
		"| start |           | 3.14       |       | s    |  |",
	}, lines[3:])
}

func TestRepeat(t *testing.T) {
	var sum atomic.Int64
	clients := make([]struct{}, 7)
	result, err := repeat(t.Context(), bounds{limit: 100}, clients, func(_ context.Context, _ struct{}, n int) error {
		sum.Add(int64(n))
		return nil
	})
	require.NoError(t, err)
	require.Len(t, result.each, 100)
	require.Equal(t, int64(99*100/2), sum.Load(), "each number once")

	failure := errors.New("failed")
	_, err = repeat(t.Context(), bounds{}, clients, func(context.Context, struct{}, int) error { return failure })
	require.ErrorIs(t, err, failure)

	_, err = repeat(t.Context(), bounds{duration: time.Millisecond}, clients, func(ctx context.Context, _ struct{}, _ int) error {
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorContains(t, err, "increase the duration")
}

func TestPercentile(t *testing.T) {
	var all timings
	for i := range 100 {
		all = all.add(timings{each: []time.Duration{time.Duration(100-i) * time.Millisecond}, elapsed: 20 * time.Millisecond})
	}
	require.InDelta(t, 50, all.percentile(0.5), 0)
	require.InDelta(t, 99, all.percentile(0.99), 0)
	require.InDelta(t, 50, all.perSecond(), 1e-9)
}

func TestTarget(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(strings.TrimSpace(`
apiVersion: v1
kind: Config
current-context: root
clusters:
- {name: root, cluster: {server: "https://example.com:6443/clusters/root"}}
contexts:
- {name: root, context: {cluster: root}}
`)), 0o600))
	tenants, err := newTarget(file, "", true)
	require.NoError(t, err)
	require.Equal(t, "https://example.com:6443/clusters/root:a", tenants.in("root:a").rest().Host)
	plain, err := newTarget(file, "root", false)
	require.NoError(t, err)
	require.Equal(t, "https://example.com:6443", plain.in("*").rest().Host)
}

// TestWorkspaceEvents checks that each workspace counts once, when it becomes Ready.
func TestWorkspaceEvents(t *testing.T) {
	w := &workspaceRun{started: map[string]time.Time{}, existing: map[string]string{}, changed: make(chan struct{}, 1)}
	event := func(kind watch.EventType, name, phase string) {
		w.take(watch.Event{Type: kind, Object: &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"cluster": "of-" + name}, "status": map[string]any{"phase": phase},
		}}})
	}
	event(watch.Added, "a", "Initializing")
	require.Empty(t, w.ready)
	event(watch.Modified, "a", "Ready")
	event(watch.Modified, "a", "Ready")
	event(watch.Added, "b", "Ready")
	require.Len(t, w.ready, 2)
	require.ElementsMatch(t, []string{"of-a", "of-b"}, w.clusters())
	event(watch.Deleted, "a", "Ready")
	event(watch.Deleted, "b", "Ready")
	require.NoError(t, w.waitGone(t.Context()))
	w.take(watch.Event{Type: watch.Error})
	require.ErrorContains(t, w.wait(t.Context(), func() bool { return false }), "the watch ended")
}

func TestProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	child, err := startProcess(t.Context(), io.Discard, "sh", "-c", "echo >$0; exec sleep 60", file)
	require.NoError(t, err)
	require.NoError(t, child.waitForFile(t.Context(), file))
	tree, err := processTree(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), tree[0].pid)
	require.Greater(t, tree[0].proportional, int64(1<<20))
	require.True(t, slices.ContainsFunc(tree, func(u usage) bool { return u.pid == child.pid() }), "the child is part of the tree")
	require.Error(t, child.stop(), "a signal ended it")

	_, err = processTree(1 << 30)
	require.ErrorIs(t, err, os.ErrNotExist)
	failing, err := startProcess(t.Context(), io.Discard, "false")
	require.NoError(t, err)
	require.ErrorContains(t, failing.waitForFile(t.Context(), file+"-never"), "ended before it was ready")
	require.Equal(t, "shardplane shard root", commandName([]string{"/bin/shardplane", "shard", "--x=y", "--name=root"}))
}
