package garbagecollector

import (
	"context"
	"sync/atomic"
)

// together lets those who wait for the same at the same time wait once: each for what was begun
// after it had come.
type together struct {
	wait func(ctx context.Context) error

	begun atomic.Uint64
	turn  chan struct{}
	// done is the number of the last that succeeded, and belongs to who has the turn.
	done uint64
}

func newTogether(wait func(ctx context.Context) error) *together {
	return &together{wait: wait, turn: make(chan struct{}, 1)}
}

func (t *together) do(ctx context.Context) error {
	before := t.begun.Load()
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.turn }()
	if t.done > before {
		return nil
	}
	number := t.begun.Add(1)
	err := t.wait(ctx)
	if err == nil {
		t.done = number
	}
	return err
}
