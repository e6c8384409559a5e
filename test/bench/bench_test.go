package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	require.Greater(t, pages, whole, "pages are not larger than the list although each has metadata")
	require.NoError(t, removeRun(t.Context(), client, "run"))
}
