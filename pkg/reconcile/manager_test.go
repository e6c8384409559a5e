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
}

func (w *worker) Name() string { return w.name }

func (w *worker) Run(ctx context.Context) error {
	w.journal.add("start " + w.name)
	<-ctx.Done()
	return nil
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

func TestManagerLeavesOutWhatIsNotEnabled(t *testing.T) {
	j := &journal{}
	off := describe(&worker{name: "off", journal: j})
	off.Enabled = func(string) bool { return false }
	m, err := NewManager([]Descriptor[string]{describe(&worker{name: "a", journal: j}), off, describe(&worker{name: "b", journal: j})}, "")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, m.Names())
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

func TestManagerRefusesBadCatalogues(t *testing.T) {
	a := &worker{name: "a", journal: &journal{}}
	_, err := NewManager([]Descriptor[string]{describe(a), describe(a)}, "")
	require.ErrorContains(t, err, `named "a"`)

	broken := Descriptor[string]{Name: "b", New: func(string) (Runnable, error) { return nil, errors.New("no client") }}
	_, err = NewManager([]Descriptor[string]{broken}, "")
	require.ErrorContains(t, err, "no client")
}
