package garbagecollector

import (
	"context"
	"sync/atomic"
)

// together lets those who ask at the same time have one answer: each gets one that was begun
// after it had asked.
type together[T any] struct {
	ask func(ctx context.Context) (T, error)

	begun atomic.Uint64
	turn  chan struct{}
	// answer is that of the question with the number, and belongs to who has the turn.
	answer T
	number uint64
}

func newTogether[T any](ask func(ctx context.Context) (T, error)) *together[T] {
	return &together[T]{ask: ask, turn: make(chan struct{}, 1)}
}

func (t *together[T]) get(ctx context.Context) (T, error) {
	before := t.begun.Load()
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	defer func() { <-t.turn }()
	if t.number > before {
		return t.answer, nil
	}
	number := t.begun.Add(1)
	answer, err := t.ask(ctx)
	if err == nil {
		t.answer, t.number = answer, number
	}
	return answer, err
}
