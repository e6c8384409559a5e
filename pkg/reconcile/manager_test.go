package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// journal records what happens in a test, in order.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) add(entry string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
}

func (j *journal) has(entry string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(j.entries, entry)
}

// worker is a Runnable that records its life.
type worker struct {
	name    string
	journal *journal
	fail    chan error
}

func (w *worker) Name() string { return w.name }

func (w *worker) Run(ctx context.Context) error {
	w.journal.add("start " + w.name)
	select {
	case <-ctx.Done():
		w.journal.add("stop " + w.name)
		return nil
	case err := <-w.fail:
		return err
	}
}

type gate chan struct{}

func (g gate) WaitForSync(ctx context.Context) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func describe(w *worker, informers ...Synced) Descriptor[string] {
	return Descriptor[string]{
		Name:      w.name,
		Informers: func(string) []Synced { return informers },
		New:       func(string) (Runnable, error) { return w, nil },
	}
}

func TestManagerStopsInReverseOrder(t *testing.T) {
	j := &journal{}
	a, b, c := &worker{name: "a", journal: j}, &worker{name: "b", journal: j}, &worker{name: "c", journal: j}
	off := describe(&worker{name: "off", journal: j})
	off.Enabled = func(string) bool { return false }
	m, err := NewManager([]Descriptor[string]{describe(a), describe(b), off, describe(c)}, "")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, m.Names())

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	for _, name := range []string{"a", "b", "c"} {
		require.Eventually(t, func() bool { return j.has("start " + name) }, eventually, time.Millisecond)
	}
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, []string{"stop c", "stop b", "stop a"}, j.entries[3:])
}

func TestManagerWaitsForInformersOfEachOnItsOwn(t *testing.T) {
	j := &journal{}
	ready := gate(make(chan struct{}))
	a, b := &worker{name: "a", journal: j}, &worker{name: "b", journal: j}
	m, err := NewManager([]Descriptor[string]{describe(a, ready), describe(b)}, "")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	require.Eventually(t, func() bool { return j.has("start b") }, eventually, time.Millisecond)
	require.False(t, j.has("start a"), "a has to wait for its informer")
	close(ready)
	require.Eventually(t, func() bool { return j.has("start a") }, eventually, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestManagerStopsWhileInformersAreNotSynced(t *testing.T) {
	j := &journal{}
	m, err := NewManager([]Descriptor[string]{describe(&worker{name: "a", journal: j}, gate(make(chan struct{})))}, "")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, m.Run(ctx))
	require.Empty(t, j.entries)
}

func TestManagerStopsAllWhenOneFails(t *testing.T) {
	for name, failure := range map[string]error{"error": errors.New("broken"), "no error": nil} {
		t.Run(name, func(t *testing.T) {
			j := &journal{}
			a, b := &worker{name: "a", journal: j}, &worker{name: "b", journal: j, fail: make(chan error, 1)}
			m, err := NewManager([]Descriptor[string]{describe(a), describe(b)}, "")
			require.NoError(t, err)
			b.fail <- failure
			err = m.Run(t.Context())
			require.ErrorContains(t, err, "controller b")
			if failure != nil {
				require.ErrorIs(t, err, failure)
			} else {
				require.ErrorIs(t, err, ErrEnded)
			}
		})
	}
}

func TestManagerRefusesBadCatalogues(t *testing.T) {
	a := &worker{name: "a", journal: &journal{}}
	_, err := NewManager([]Descriptor[string]{describe(a), describe(a)}, "")
	require.ErrorContains(t, err, `named "a"`)

	broken := Descriptor[string]{Name: "b", New: func(string) (Runnable, error) { return nil, errors.New("no client") }}
	_, err = NewManager([]Descriptor[string]{broken}, "")
	require.ErrorContains(t, err, "no client")
}
