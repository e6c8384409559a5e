package ring

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// world is a server with the Leases of a ring, and members with bad connections to it, in simulated time. It is
// deterministic for a seed.
type world struct {
	rand   *rand.Rand
	now    time.Duration
	queue  events
	events int

	settings Config
	revision int
	leases   map[string]lease
	table    stored
	made     time.Duration
	log      []change

	nodes []*node
	// loss is the probability that a request or its response is lost; delay bounds the latency of each.
	loss  float64
	delay time.Duration
	down  bool
	// crash makes the next member crash that sends this request, before or after it is executed.
	crash verb

	covered slots // slots with a worker
	noted   bool
	orphans map[int]time.Duration // since when a slot has no worker
	data    data
	jumps   *rand.Rand
	// tolerantUntil is the time until which members may not have detected a rollback, so that two may work on one slot.
	tolerantUntil time.Duration
	problem       error
}

type change struct {
	table   stored
	lease   lease
	deleted bool
	all     map[string]lease
}

type backup struct {
	at       time.Duration
	revision int
	leases   map[string]lease
	table    stored
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newWorld(seed uint64) *world {
	w := &world{
		rand: rand.New(rand.NewPCG(seed, 7)), leases: map[string]lease{}, orphans: map[int]time.Duration{}, delay: 20 * time.Millisecond,
		settings: Config{
			LeaseDuration: defaultLeaseDuration, RenewDeadline: defaultRenewDeadline, RenewInterval: defaultRenewInterval,
			GracePeriod: defaultGracePeriod, RebalanceDelay: defaultRebalanceDelay, LoadTimeout: defaultLeaseDuration, Weight: 1,
		},
	}
	if seed%4 == 3 {
		w.jumps = rand.New(rand.NewPCG(seed, 8))
	}
	return w
}

func (w *world) at(t time.Duration, do func()) {
	w.events++
	heap.Push(&w.queue, event{max(t, w.now), w.events, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now+d, do) }
func (w *world) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rand.Int64N(int64(d) + 1))
}

func (w *world) run(d time.Duration) {
	end := w.now + d
	for w.problem == nil && len(w.queue) > 0 && w.queue[0].at <= end {
		e, _ := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
		w.check()
	}
	w.now = end
}

func (w *world) failf(format string, args ...any) {
	if w.problem == nil {
		w.problem = fmt.Errorf("at %s: %w", w.now, fmt.Errorf(format, args...))
	}
}

func (w *world) check() {
	var all slots
	for _, n := range w.nodes {
		mine := n.workable()
		if twice := all.and(mine); !twice.empty() && w.now >= w.tolerantUntil {
			w.failf("two members may work on one slot: %s and another one", n.m.id)
		}
		all = all.or(mine)
	}
	if all == w.covered && w.noted {
		return
	}
	w.covered, w.noted = all, true
	for slot := range slotCount {
		if all.has(slot) {
			delete(w.orphans, slot)
		} else if _, known := w.orphans[slot]; !known {
			w.orphans[slot] = w.now
		}
	}
}

type node struct {
	*world

	m                          *machine
	g                          *gate
	rate                       float64
	offset, shown, jumped      time.Duration
	dead, frozen, cut, stalled bool
	thawed                     time.Duration
	inbox                      []func()
	inFlight                   *request
	wakeAt                     time.Duration
	seen                       int
	works                      []*job
	written                    int
	replica                    replica
}

type job struct {
	doing  []int
	slot   int
	ctx    context.Context //nolint:containedctx // checked periodically by the work
	end    func()
	ending bool
}

func (w *world) join(weight int) *node {
	n := &node{world: w, rate: 0.953 + 0.094*w.rand.Float64(), offset: w.upTo(time.Hour), wakeAt: -1, replica: newReplica(len(w.data.changes))}
	s := w.settings
	s.Weight = weight
	name := len(w.nodes)
	starts := 0
	n.m = newMachine(s, func() string {
		starts++
		return fmt.Sprintf("%c%d-%d", 'a'+w.rand.IntN(26), name, starts)
	})
	n.g = newGate(n.local, s.GracePeriod)
	w.nodes = append(w.nodes, n)
	w.after(w.upTo(w.delay), func() { n.when(n.list) })
	w.after(0, n.work)
	n.pump()
	return n
}

func (n *node) local() time.Duration {
	n.shown = max(n.shown, n.offset+time.Duration(float64(n.now)*n.rate))
	return n.shown
}

// jumpMost bounds the jumps of clocks, one per LeaseDuration: the time between the end of work and an expulsion must
// be more than two jumps and the drift.
const jumpMost = 750 * time.Millisecond

// jump lets the clocks of processes jump forward or stand still for a moment. They never go back.
func (w *world) jump() {
	if w.jumps == nil {
		return
	}
	for _, n := range w.live() {
		if w.jumps.IntN(3) == 0 && (n.jumped == 0 || w.now > n.jumped+2*w.settings.LeaseDuration) {
			n.jumped = w.now
			n.offset += time.Duration(w.jumps.Int64N(int64(2*jumpMost))) - jumpMost
			n.when(func() {})
		}
	}
}

func (n *node) when(do func()) {
	switch {
	case n.dead:
	case n.frozen:
		n.inbox = append(n.inbox, do)
	default:
		do()
		n.pump()
	}
}

func (n *node) list() {
	if n.cut || n.down {
		n.after(time.Second, func() { n.when(n.list) })
		return
	}
	n.seen = len(n.log)
	if n.world.table.table != nil {
		n.m.observeTable(n.local(), n.world.table)
	}
	for _, id := range slices.Sorted(maps.Keys(n.leases)) {
		n.m.saw(n.local(), n.leases[id])
	}
	n.m.synced = true
}

func (n *node) watch(upTo int) {
	if n.cut || n.stalled || n.down || !n.m.synced {
		return
	}
	for ; n.seen < upTo; n.seen++ {
		switch c := n.log[n.seen]; {
		case c.all != nil:
			for id := range n.m.seen {
				if _, there := c.all[id]; !there {
					delete(n.m.seen, id)
				}
			}
			for _, l := range c.all {
				n.m.saw(n.local(), l)
			}
		case c.table.table != nil:
			n.m.observeTable(n.local(), c.table)
		case c.deleted:
			delete(n.m.seen, c.lease.id)
		default:
			n.m.saw(n.local(), c.lease)
		}
	}
}

func (n *node) pump() {
	if n.dead || n.frozen {
		return
	}
	now := n.local()
	n.load()
	if n.inFlight == nil {
		if n.inFlight = n.m.step(now, n.g); n.inFlight != nil {
			n.send(n.inFlight)
		}
	} else {
		n.g.set(n.m.grants(now, n.g.busy()))
	}
	n.gain()
	for _, j := range n.works {
		if j.ctx.Err() != nil && !j.ending {
			j.ending = true
			n.after(time.Duration(0.98*float64(n.upTo(n.settings.GracePeriod))/n.rate), func() { n.when(func() { n.finish(j) }) })
		}
	}
	if over, _ := n.g.overdue(now); over > 0 {
		if n.thawed == 0 && n.jumped == 0 {
			n.failf("%s has work that has not ended in time", n.m.id)
		}
		n.die() // the process was frozen, or its clock jumped, when it should have exited
		return
	}
	at := n.m.nextWake(now, n.g.busy())
	if at == never || n.inFlight != nil && at <= now {
		return
	}
	due := time.Duration(float64(at-n.offset)/n.rate) + time.Microsecond
	if n.wakeAt <= n.now || due < n.wakeAt {
		n.wakeAt = due
		n.world.at(due, func() { n.when(func() {}) })
	}
}

func (n *node) finish(j *job) {
	if at := slices.Index(n.works, j); at >= 0 {
		n.works = slices.Delete(n.works, at, at+1)
		n.workedOff(j)
		j.end()
	}
}

func (n *node) work() {
	if n.dead {
		return
	}
	n.after(200*time.Millisecond+n.upTo(2*time.Second), n.work)
	if n.frozen {
		return
	}
	n.begin(n.rand.IntN(slotCount))
	for range 8 {
		if slot, some := n.replica.next(n); some {
			n.begin(slot)
		}
	}
	n.pump()
}

func (n *node) begin(slot int) {
	ctx, end, ok := n.g.begin(context.Background(), uint64(slot)<<56) //nolint:gosec // 0 to 255
	if !ok {
		return
	}
	j := &job{ctx: ctx, end: end, slot: slot, doing: n.replica.take(slot)}
	n.works = append(n.works, j)
	slices.SortStableFunc(n.works, func(a, b *job) int { return a.slot - b.slot })
	n.after(n.upTo(6*time.Second), func() { n.when(func() { n.finish(j) }) })
}

func (n *node) workable() slots {
	if n.dead {
		return slots{}
	}
	var may slots
	if n.local() < n.g.grants.until {
		may = n.g.grants.owned
	}
	if !n.frozen {
		may = may.or(n.g.inWork)
	}
	return may
}

func (n *node) freeze(d time.Duration) {
	if n.dead || n.frozen {
		return
	}
	n.frozen = true
	n.after(d, n.thaw)
}

func (n *node) thaw() {
	if n.dead || !n.frozen {
		return
	}
	n.frozen, n.thawed = false, n.now
	inbox := n.inbox
	n.inbox = nil
	if n.rand.IntN(2) == 0 {
		n.pump()
	}
	for _, do := range inbox {
		do()
	}
	n.pump()
	for _, j := range slices.Clone(n.works) {
		if j.ctx.Err() != nil {
			n.finish(j) // the work checks its context before it continues
		}
	}
	n.pump()
}

func (n *node) isolate(d time.Duration) {
	n.cut = true
	n.after(d, func() {
		n.cut = false
		n.catchUp()
	})
}

func (n *node) stall(d time.Duration) {
	n.stalled = true
	n.after(d, func() {
		n.stalled = false
		n.catchUp()
	})
}

func (n *node) catchUp() {
	n.when(func() {
		n.watch(len(n.log))
		n.receiveChanges(len(n.data.changes))
	})
}

func (n *node) die() { n.dead = true }

func (w *world) live() []*node {
	return slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return n.dead || n.m.draining || n.m.phase == finished })
}

func (n *node) send(r *request) {
	n.after(time.Duration(float64(n.settings.requestTimeout())/n.rate), func() {
		n.when(func() { n.receive(r, response{outcome: failed, err: errors.New("timed out")}) })
	})
	lost := func() bool { return n.cut || n.down || n.rand.Float64() < n.loss }
	if n.crash == r.verb && n.rand.IntN(2) == 0 {
		n.crash = ""
		n.die()
		if n.rand.IntN(2) == 0 {
			return
		}
	}
	if lost() {
		return
	}
	n.after(n.upTo(n.delay), func() {
		a := n.serve(r)
		if a.outcome == done && r.verb != readOwn && r.verb != readTable && r.verb != listAll {
			n.written++
		}
		if !lost() {
			n.after(n.upTo(n.delay), func() { n.when(func() { n.receive(r, a) }) })
		}
	})
}

func (n *node) receive(r *request, a response) {
	if n.inFlight == r {
		n.inFlight = nil
		n.m.handle(n.local(), r, a)
	}
}
