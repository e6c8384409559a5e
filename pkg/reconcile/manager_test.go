package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/background"
)

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
		Name: w.name, Placement: OnLeader,
		New: func(string) (Made, error) { return Made{Runnable: w, Needs: informers}, nil },
	}
}

func TestManagerSkipsDisabledControllers(t *testing.T) {
	j := &journal{}
	off := describe(&worker{name: "off", journal: j})
	off.Enabled = func(string) bool { return false }
	m, err := NewManager([]Descriptor[string]{describe(&worker{name: "a", journal: j}), off, describe(&worker{name: "b", journal: j})}, "", OnLeader)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, m.Names())
}

func TestManagerWaitsForInformersSeparately(t *testing.T) {
	j := &journal{}
	ready := gate(make(chan struct{}))
	a, b := &worker{name: "a", journal: j}, &worker{name: "b", journal: j}
	m, err := NewManager([]Descriptor[string]{describe(a, ready), describe(b)}, "", OnLeader)
	require.NoError(t, err)
	background.Run(t.Context(), t, m.Run)
	require.Eventually(t, func() bool { return j.has("start b") }, eventually, time.Millisecond)
	require.False(t, j.has("start a"), "controller a must wait for its informer")
	close(ready)
	require.Eventually(t, func() bool { return j.has("start a") }, eventually, time.Millisecond)
}

func TestManagerRefusesBadCatalogues(t *testing.T) {
	a := &worker{name: "a", journal: &journal{}}
	_, err := NewManager([]Descriptor[string]{describe(a), describe(a)}, "", OnLeader)
	require.ErrorContains(t, err, `named "a"`)

	broken := Descriptor[string]{Name: "b", Placement: OnLeader, New: func(string) (Made, error) { return Made{}, errors.New("no client") }}
	_, err = NewManager([]Descriptor[string]{broken}, "", OnLeader)
	require.ErrorContains(t, err, "no client")

	renamed := describe(a)
	renamed.Name = "c"
	_, err = NewManager([]Descriptor[string]{renamed}, "", OnLeader)
	require.ErrorContains(t, err, "is named c")
}

type own struct {
	worker

	synced gate
}

func (o *own) HasSynced() bool { return false }

func (o *own) WaitForSync(ctx context.Context) error { return o.synced.WaitForSync(ctx) }

func (o *own) Run(ctx context.Context) error {
	err := o.worker.Run(ctx)
	o.journal.add("end " + o.name)
	return err
}

// TestCatalogueEntryIsSufficient: a catalogue entry is sufficient to start and stop a controller and its informers in order, to name
// it in metrics, and to restrict it to a placement.
func TestCatalogueEntryIsSufficient(t *testing.T) {
	j := &journal{}
	informer := &own{worker{"informer", j}, make(gate)}
	entry := Descriptor[*journal]{Name: "new-one", Placement: OnLeader, New: func(j *journal) (Made, error) {
		controller := New(Config[client.Key]{
			Name:      "new-one",
			Reconcile: func(context.Context, client.Key) (Result, error) { return Result{}, nil },
			Sources: []Source[client.Key]{func(context.Context, Queue[client.Key]) (func(), error) {
				j.add("start controller")
				return func() { j.add("end controller") }, nil
			}},
		})
		return Made{Runnable: controller, Owns: []client.Runner{informer}}, nil
	}}
	elsewhere, err := NewManager([]Descriptor[*journal]{entry}, j, OnEveryReplica)
	require.NoError(t, err)
	require.Empty(t, elsewhere.Names())
	m, err := NewManager([]Descriptor[*journal]{entry}, j, OnLeader)
	require.NoError(t, err)
	require.Equal(t, []string{"new-one"}, m.Names())
	require.Empty(t, j.entries, "controllers must not start before Run")

	measuring, registry := measured(t)
	stop := background.Run(measuring, t, m.Run)
	require.Eventually(t, func() bool { return j.has("start informer") }, eventually, time.Millisecond)
	require.False(t, j.has("start controller"))
	require.Zero(t, metric(t, registry, "shardplane_reconcile_controllers"))
	close(informer.synced)
	require.Eventually(t, func() bool {
		return metric(t, registry, "shardplane_reconcile_controllers") == 1 && j.has("start controller")
	}, eventually, time.Millisecond)
	stop()
	require.Equal(t, []string{"start informer", "start controller", "end controller", "end informer"}, j.entries)
	require.Zero(t, metric(t, registry, "shardplane_reconcile_controllers"), "the controller must have stopped")
}
