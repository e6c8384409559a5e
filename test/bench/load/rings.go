package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/test/bench/measure"
)

// RingOptions say how Moves, Crash, Shares and Many measure a ring.
type RingOptions struct {
	// Rounds is how often a member joins and leaves.
	Rounds int
	// Members are those of a large ring.
	Members int
	// Window is for how long writes are counted.
	Window time.Duration
	// Run tells the ring from others.
	Run string
}

const ringTarget = "ring"

// Moves has a fourth member join and leave, and measures for how long hashes have nobody that
// move, and whether more move than it takes. Then one of three crashes. All times are the
// defaults.
func Moves(ctx context.Context, shard Target, o RingOptions) (results []measure.Result, err error) {
	d := newDrill(shard, ring.Config{Name: "bench-moves-" + o.Run})
	members, err := d.joins(ctx, true, 1, 1, 1)
	defer func() { err = errors.Join(err, d.stop(members)) }()
	if err != nil {
		return nil, err
	}
	idle, more := &measure.Recorder{}, 0.
	if _, err := d.calm(ctx, members, &measure.Recorder{}); err != nil {
		return nil, err
	}
	for range o.Rounds {
		newcomer, err := d.join(ctx, 1, true)
		if err != nil {
			return nil, err
		}
		members = append(members, newcomer)
		moved, err := d.calm(ctx, members, idle)
		if err != nil {
			return nil, err
		}
		more = max(more, float64(moved)-slots*shareOf(newcomer.Status()))
		newcomer.leave()
		<-newcomer.gone
		members = members[:len(members)-1]
		if _, err := d.calm(ctx, members, idle); err != nil {
			return nil, errors.Join(err, newcomer.err)
		}
	}
	crash, err := d.crash(ctx, members)
	crash.Name = "crash with the defaults: a hash has no worker"
	return []measure.Result{
		idle.Median("planned move: a hash has no worker", ringTarget),
		{Name: "moved by a join beyond the newcomer's part", Target: ringTarget, Value: more, Unit: "of 256"},
		crash,
	}, err
}

// calm waits until these members have all and work on it, and records for how long the hashes
// had nobody that have moved, of which it returns the number.
func (d *drill) calm(ctx context.Context, members []*ringMember, idle *measure.Recorder) (moved int, err error) {
	if _, err := d.stable(ctx, members); err != nil {
		return 0, err
	}
	if err := d.covered(ctx); err != nil {
		return 0, err
	}
	moved, took := d.taken()
	for _, t := range took {
		idle.Add(t)
	}
	return moved, nil
}

// crash has the last of the members crash, and waits until the others have all.
func (d *drill) crash(ctx context.Context, members []*ringMember) (measure.Result, error) {
	d.taken()
	members[len(members)-1].crash()
	if err := d.covered(ctx); err != nil {
		return measure.Result{}, err
	}
	_, took := d.taken()
	idle := &measure.Recorder{}
	for _, t := range took {
		idle.Add(t)
	}
	return idle.Median("crash", ringTarget), nil
}

// Crash measures for how long hashes have nobody, with Leases of a duration.
func Crash(ctx context.Context, shard Target, lease time.Duration, o RingOptions) (result measure.Result, err error) {
	d := newDrill(shard, ring.Config{Name: "bench-crash-" + o.Run, LeaseDuration: lease})
	members, err := d.joins(ctx, true, 1, 1, 1)
	defer func() { err = errors.Join(err, d.stop(members)) }()
	if err != nil {
		return result, err
	}
	if _, err := d.calm(ctx, members, &measure.Recorder{}); err != nil {
		return result, err
	}
	result, err = d.crash(ctx, members)
	result.Name = fmt.Sprintf("crash, LeaseDuration %s: a hash has no worker", lease)
	return result, err
}

// Shares compares the parts of members with their weights.
func Shares(ctx context.Context, shard Target, o RingOptions) (result measure.Result, err error) {
	d := newDrill(shard, ring.Config{Name: "bench-shares-" + o.Run, LeaseDuration: 3 * time.Second})
	members, err := d.joins(ctx, false, 1, 2, 3, 5, 8)
	defer func() { err = errors.Join(err, d.stop(members)) }()
	if err != nil {
		return result, err
	}
	deviation, err := d.stable(ctx, members)
	return measure.Result{Name: "parts against weights of 1, 2, 3, 5 and 8", Target: ringTarget, Value: deviation, Unit: "of 256"}, err
}

// Many measures a ring of many members with the default times: until each has its part, and the
// writes of each after that.
func Many(ctx context.Context, shard Target, o RingOptions) (results []measure.Result, err error) {
	d := newDrill(shard, ring.Config{Name: "bench-many-" + o.Run})
	weights := make([]int, o.Members)
	for n := range weights {
		weights[n] = 1
	}
	began := time.Now()
	members, err := d.joins(ctx, false, weights...)
	defer func() { err = errors.Join(err, d.stop(members)) }()
	if err != nil {
		return nil, err
	}
	deviation, err := d.stable(ctx, members)
	if err != nil {
		return nil, err
	}
	of := fmt.Sprintf("%d members", o.Members)
	results = append(results, measure.Result{
		Name: of + ": until each has its part", Target: ringTarget, Value: time.Since(began).Seconds(), Unit: "s",
		Note: fmt.Sprintf("from the start of the ring; parts differ by %s of 256 at most", fmt.Sprint(deviation)),
	})
	before := make([]int64, len(members))
	for n, m := range members {
		before[n] = m.writes.Load()
	}
	began = time.Now()
	select {
	case <-ctx.Done():
		return results, ctx.Err()
	case <-time.After(o.Window):
	}
	elapsed := time.Since(began).Seconds()
	var all, most int64
	for n, m := range members {
		writes := m.writes.Load() - before[n]
		all, most = all+writes, max(most, writes)
	}
	return append(results, measure.Result{
		Name: of + ": Lease writes of each", Target: ringTarget, Value: float64(all) / float64(len(members)) / elapsed, Unit: "/s", Count: int(all),
		Note: fmt.Sprintf("%.2f at most, in %.0f s", float64(most)/elapsed, elapsed),
	}), nil
}
