package process_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/bench/process"
)

func TestTree(t *testing.T) {
	child, err := process.Start(t.Context(), io.Discard, "sleep", "60")
	require.NoError(t, err)
	defer func() { require.Error(t, child.Stop(10*time.Second), "a signal ends it") }()

	// It has those of nobody for a moment, until it runs the program.
	require.Eventually(t, func() bool {
		arguments, err := process.Arguments(child.PID())
		return err == nil && slices.Equal([]string{"sleep", "60"}, arguments)
	}, 10*time.Second, time.Millisecond)
	tree, err := process.Tree(os.Getpid())
	require.NoError(t, err)
	var found bool
	for _, memory := range tree {
		if memory.PID == child.PID() {
			found = true
		}
	}
	require.True(t, found, "the child is part of the tree")
	require.Equal(t, os.Getpid(), tree[0].PID)
	require.Greater(t, tree[0].Resident, int64(1<<20))
	require.LessOrEqual(t, tree[0].Proportional, tree[0].Resident)

	_, err = process.Tree(1 << 30)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWaitForFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	p, err := process.Start(t.Context(), io.Discard, "sh", "-c", "echo yes >$0; exec sleep 60", file)
	require.NoError(t, err)
	require.NoError(t, p.WaitForFile(t.Context(), file, false))
	require.Error(t, p.Stop(10*time.Second))

	p, err = process.Start(t.Context(), io.Discard, "false")
	require.NoError(t, err)
	require.ErrorContains(t, p.WaitForFile(t.Context(), file+"-never", true), "ended before it was ready")
}

func TestStopKillsWhatDoesNotListen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	p, err := process.Start(t.Context(), io.Discard, "sh", "-c", "trap '' TERM; echo yes >$0; while true; do sleep 1; done", file)
	require.NoError(t, err)
	require.NoError(t, p.WaitForFile(t.Context(), file, false))
	require.ErrorContains(t, p.Stop(100*time.Millisecond), "was killed")
}
