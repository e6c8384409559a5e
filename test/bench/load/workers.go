package load

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// maxErrors ends a phase in which nothing works.
const maxErrors = 50

// errTooShort says that nothing was measured.
var errTooShort = errors.New("the time was over before the first one ended: give it more")

// phase is a kind of operation that several clients repeat.
type phase struct {
	recorder measure.Recorder
	// limit bounds the number of operations; 0 means none.
	limit int64
	// interval spreads the operations evenly over time; 0 means as fast as
	// they go.
	interval time.Duration

	started  atomic.Int64
	failures atomic.Int64
}

// run repeats op on all clients until the context ends, the limit is reached,
// or too much fails, and returns how long it took. Each call gets its number.
func run[C any](ctx context.Context, p *phase, clients []C, op func(context.Context, C, int) error) time.Duration {
	begin := time.Now()
	var wg sync.WaitGroup
	for _, client := range clients {
		wg.Go(func() {
			for {
				n, ok := p.next(ctx, begin)
				if !ok {
					return
				}
				start := time.Now()
				err := op(ctx, client, n)
				switch {
				case err == nil:
					p.recorder.Add(time.Since(start))
				case ctx.Err() != nil:
					return // cut off by the end of the phase, not a failure
				default:
					p.recorder.Fail(err)
					p.failures.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}

// next hands out the number of the next operation when its time has come.
func (p *phase) next(ctx context.Context, begin time.Time) (int, bool) {
	n := p.started.Add(1) - 1
	if ctx.Err() != nil || p.limit > 0 && n >= p.limit || p.failures.Load() >= maxErrors {
		return 0, false
	}
	if p.interval > 0 {
		timer := time.NewTimer(time.Until(begin.Add(time.Duration(n) * p.interval)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return 0, false
		}
	}
	return int(n), true
}

// result returns the phase's rate, and an error when nothing succeeded.
func (p *phase) result(name, target string, elapsed time.Duration) (measure.Result, error) {
	result := p.recorder.Rate(name, target, elapsed)
	if result.Count == 0 {
		err := p.recorder.FirstError()
		if err == nil {
			err = errTooShort
		}
		return result, err
	}
	if err := p.recorder.FirstError(); err != nil {
		result.Note = "first error: " + err.Error()
	}
	return result, nil
}

// clients makes n clients, each with a connection of its own.
func clients[C any](n int, newClient func() (C, error)) ([]C, error) {
	made := make([]C, n)
	for i := range made {
		client, err := newClient()
		if err != nil {
			return nil, err
		}
		made[i] = client
	}
	return made, nil
}
