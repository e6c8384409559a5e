package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// timings are the durations of an operation in ascending order, and the total elapsed time.
type timings struct {
	each    []time.Duration
	elapsed time.Duration
}

// percentile returns the smallest duration that is not exceeded by the share q of all durations,
// in milliseconds.
func (t timings) percentile(q float64) float64 {
	rank := int(math.Ceil(q * float64(len(t.each))))
	return float64(t.each[max(rank, 1)-1]) / float64(time.Millisecond)
}

// perSecond returns the number of operations per second.
func (t timings) perSecond() float64 { return float64(len(t.each)) / t.elapsed.Seconds() }

// add returns the timings of both.
func (t timings) add(o timings) timings {
	return timings{each: slices.Sorted(slices.Values(append(slices.Clone(t.each), o.each...))), elapsed: t.elapsed + o.elapsed}
}

// bounds end a phase: after a number of operations or a duration, whichever is not zero.
type bounds struct {
	limit    int
	duration time.Duration
}

// repeat runs an operation on all clients at the same time until the bounds are reached or one
// operation fails. Each operation gets its number.
func repeat[C any](ctx context.Context, until bounds, clients []C, op func(context.Context, C, int) error) (timings, error) {
	running, cancel := context.WithCancel(ctx)
	if until.duration > 0 {
		running, cancel = context.WithTimeout(ctx, until.duration)
	}
	defer cancel()
	group, running := errgroup.WithContext(running)
	var next atomic.Int64
	each := make([][]time.Duration, len(clients))
	begin := time.Now()
	for i, client := range clients {
		group.Go(func() error {
			for {
				n := int(next.Add(1)) - 1
				over := running.Err() != nil || until.limit > 0 && n >= until.limit
				if over {
					return nil
				}
				start := time.Now()
				err := op(running, client, n)
				if running.Err() != nil {
					continue // interrupted by the end of the phase
				}
				if err != nil {
					return err
				}
				each[i] = append(each[i], time.Since(start))
			}
		})
	}
	err := group.Wait()
	result := timings{each: slices.Sorted(slices.Values(slices.Concat(each...))), elapsed: time.Since(begin)}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && len(result.each) == 0 {
		err = errors.New("no operation was completed: increase the duration")
	}
	return result, err
}

// clientsOf returns n clients with a connection each.
func clientsOf[C any](n int, newClient func() (C, error)) ([]C, error) {
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

// sleep returns after the duration.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
