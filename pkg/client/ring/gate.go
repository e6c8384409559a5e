package ring

import (
	"context"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

type gate struct {
	now         func() time.Duration
	gracePeriod time.Duration
	// idle receives a value when the last work in a slot has ended.
	idle chan struct{}

	mu     sync.Mutex
	grants grants
	works  [slotCount]map[*work]struct{}
	inWork slots
}

type work struct {
	cancel context.CancelCauseFunc
	// overdue is the time at which the work must have ended if its context was canceled; 0
	// otherwise.
	overdue time.Duration
}

func newGate(now func() time.Duration, gracePeriod time.Duration) *gate {
	return &gate{now: now, gracePeriod: gracePeriod, idle: make(chan struct{}, 1)}
}

func (g *gate) begin(ctx context.Context, hash uint64) (context.Context, func(), bool) {
	slot := slotOf(hash)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.grants.owned.has(slot) || g.now() >= g.grants.until {
		return ctx, func() {}, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w := &work{cancel: cancel}
	if g.works[slot] == nil {
		g.works[slot] = map[*work]struct{}{}
	}
	g.works[slot][w] = struct{}{}
	g.inWork.add(slot)
	return ctx, func() { g.end(slot, w) }, true
}

func (g *gate) end(slot int, w *work) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.cancel(nil)
	if delete(g.works[slot], w); len(g.works[slot]) == 0 {
		g.inWork[slot/64] &^= 1 << (slot % 64)
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

func (g *gate) set(to grants) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grants = to
	for slot := range to.stop.all {
		for w := range g.works[slot] {
			if w.overdue == 0 {
				w.cancel(client.ErrNotOwned)
				w.overdue = g.now() + g.gracePeriod
			}
		}
	}
}

func (g *gate) busy() slots {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inWork
}

// overdue returns the number of units of work that should have ended, and the time at which the
// next one must have ended.
func (g *gate) overdue(now time.Duration) (count int, next time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next = never
	for slot := range g.inWork.all {
		for w := range g.works[slot] {
			switch {
			case w.overdue == 0:
			case now >= w.overdue:
				count++
			default:
				next = min(next, w.overdue)
			}
		}
	}
	return count, next
}

// step executes the next step of a machine, and returns the request for the server. It closes the gate for released
// slots before it checks that nothing runs in them.
func (m *machine) step(now time.Duration, g *gate) *request {
	m.close(now)
	g.set(m.grants(now, g.busy()))
	r := m.next(now, g.busy())
	g.set(m.grants(now, g.busy()))
	return r
}
