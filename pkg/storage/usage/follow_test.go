package usage_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/storage/usage"
)

// follower records its notifications.
type follower struct {
	mu       sync.Mutex
	begun    int
	all      map[string]string
	filling  map[string]string
	changes  []string
	revision uint64
}

func (f *follower) funcs() usage.Follower {
	return usage.Follower{
		Begin: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.begun++
			f.filling = map[string]string{}
		},
		Complete: func(revision uint64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.all, f.filling, f.revision = f.filling, nil, revision
		},
		Changed: func(key string, before, after []byte, revision uint64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			switch {
			case f.filling != nil:
				f.filling[key] = string(after)
				return
			case after == nil:
				delete(f.all, key)
			default:
				f.all[key] = string(after)
			}
			f.revision = revision
			f.changes = append(f.changes, fmt.Sprintf("%s %s>%s", key, before, after))
		},
	}
}

func (f *follower) has() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.all)
}

// TestFollow verifies that a follower receives all existing objects and then each write with the previous value, until
// it stops, and that WaitFor waits for all writes up to a revision.
func TestFollow(t *testing.T) {
	client := startEtcd(t)
	put(t, client, "/core/secrets/c/n/a", "1")
	put(t, client, "/core/secrets/c/n/b", "2")
	put(t, client, "-elsewhere/core/pods/c/n/a", "3")
	put(t, client, "/compact_rev", "no object")
	counter := startCounter(t, client)
	require.Eventually(t, func() bool { _, known := counter.Of("c"); return known }, testTimeout, tick)

	f := &follower{}
	stop := counter.Follow(f.funcs())
	require.NoError(t, counter.WaitFor(t.Context(), 1))
	require.Equal(t, map[string]string{"/core/secrets/c/n/a": "1", "/core/secrets/c/n/b": "2"}, f.has())
	require.Empty(t, f.changes)

	put(t, client, "/example.com/widgets:-system/:1f/c/a", "x")
	put(t, client, "/core/secrets/c/n/a", "5")
	response, err := client.Delete(t.Context(), prefix+"/core/secrets/c/n/b")
	require.NoError(t, err)
	last := uint64(response.Header.Revision) //nolint:gosec // positive
	require.NoError(t, counter.WaitFor(t.Context(), last))
	require.Equal(t, last, f.revision)
	require.Equal(t, []string{"/example.com/widgets:-system/:1f/c/a >x", "/core/secrets/c/n/a 1>5", "/core/secrets/c/n/b 2>"}, f.changes)
	require.NoError(t, counter.WaitFor(t.Context(), put(t, client, "-elsewhere/core/pods/c/n/b", "no object below the prefix")))

	stop()
	require.Error(t, counter.WaitFor(expired(t), 1), "WaitFor must fail without a follower")
	put(t, client, "/core/secrets/c/n/c", "late")
	second := &follower{}
	defer counter.Follow(second.funcs())()
	require.NoError(t, counter.WaitFor(t.Context(), put(t, client, "/core/secrets/c/n/d", "later")))
	require.Len(t, second.has(), 4)
	require.Len(t, f.changes, 3, "a stopped follower must not be notified")
}

// TestListen verifies that a listener receives the key of each written object, and an empty key after missed writes, until
// it stops.
func TestListen(t *testing.T) {
	client := startEtcd(t)
	put(t, client, "/core/secrets/c/n/before", "x")
	counter := startCounter(t, client)
	require.Eventually(t, func() bool { _, known := counter.Of("c"); return known }, testTimeout, tick)
	keys, others := make(chan string, 10), make(chan string, 10)
	stop := counter.Listen(func(key string) { keys <- key })
	defer counter.Listen(func(key string) { others <- key })()
	put(t, client, "/compact_rev", "x")
	put(t, client, "/core/secrets/c/n/a", "x")
	_, err := client.Delete(t.Context(), prefix+"/core/secrets/c/n/before")
	require.NoError(t, err)
	next := func() string {
		key := <-keys
		if key == "" { // the counter was ready before it notified the listener
			key = <-keys
		}
		return key
	}
	require.Equal(t, "/core/secrets/c/n/a", next())
	require.Equal(t, "/core/secrets/c/n/before", next())
	stop()
	f := &follower{}
	defer counter.Follow(f.funcs())() // all is read again
	require.Eventually(t, func() bool {
		select {
		case key := <-others:
			return key == "" && len(f.has()) > 0
		default:
			return false
		}
	}, testTimeout, tick)
	require.Empty(t, keys)
}

func expired(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
