package ring

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

// Ring is a member of a ring. Create it with New, and run it once.
type Ring struct {
	config Config
	server *server
	gate   *gate
	start  time.Time
	// assigned are the owned, incoming and outgoing slots.
	assigned *client.ChangingRanges
	metrics  *metrics

	mu        sync.Mutex
	machine   *machine
	ran       bool
	published part
	// followers are the functions of the informers that follow LoadedRanges. They are called without the lock held.
	followers map[*func() client.Ranges]struct{}
	changed   chan struct{}
	gains     map[*gain]struct{}
	// wake receives a value when a Lease was observed.
	wake chan struct{}
}

func (r *Ring) now() time.Duration { return time.Since(r.start) }

func (r *Ring) locked(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// observe passes a Lease from the watch to the machine.
func (r *Ring) observe(l *coordinationv1.Lease, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case l.Name != r.config.Name && deleted:
		delete(r.machine.seen, leaseOf(r.config.Name, l).id)
	case l.Name != r.config.Name:
		r.machine.saw(r.now(), leaseOf(r.config.Name, l))
	case !deleted:
		if t, err := tableOf(l); err == nil {
			r.machine.observeTable(r.now(), t)
		}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machine.phase = finished
	r.gate.set(r.machine.grants(r.now(), r.gate.busy()))
	r.publish()
}

// Begin begins work on a hash (client.HashOf). ok is false if this member does not own the hash, or cannot renew its
// Lease. Otherwise the work must use the returned context, which ends when the hash moves to another member. The
// work must call end when it has ended, at most GracePeriod after the end of the context.
func (r *Ring) Begin(ctx context.Context, hash uint64) (work context.Context, end func(), ok bool) {
	return r.gate.begin(ctx, hash)
}

// Ranges returns the hashes on which this member may work (owned). It also returns the hashes that this member must
// load but must not work on (coming). These are about to move to it, or the server is unreachable.
func (r *Ring) Ranges() (owned, coming client.Ranges) {
	v := r.current()
	return v.owned.ranges(r.config.Key), v.incoming.ranges(r.config.Key)
}

func (r *Ring) current() part {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if now >= r.machine.grants(now, slots{}).until { // the expiry was not processed yet, e.g. after a freeze
		return r.published.isolated()
	}
	return r.published
}

// Changed returns a channel that is closed when Ranges have changed since this call.
func (r *Ring) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// LoadedRanges returns the owned, incoming and outgoing ranges for client.InformerOptions. A slot moves to this member
// when all running informers that use the source have loaded it, or after LoadTimeout.
func (r *Ring) LoadedRanges() client.RangeSource { return following{r.assigned, r} }

// publish updates the observable state, with the lock held, after the gate was set.
func (r *Ring) publish() {
	now, m := r.now(), r.machine
	g := m.grants(now, slots{})
	v := part{owned: g.owned, incoming: m.incoming()}
	if now >= g.until {
		v = v.isolated()
	}
	if m.phase == taking {
		v.outgoing = m.mine.outgoing
	}
	gained := v.owned.minus(r.published.owned)
	for g := range r.gains {
		g.note(gained)
	}
	if v == r.published {
		return
	}
	r.published = v
	r.assigned.Set(v.owned.or(v.incoming).or(v.outgoing).ranges(r.config.Key))
	close(r.changed)
	r.changed = make(chan struct{})
}

// OnGain calls f with the owned ranges, and then with each gained range, even if it was owned shortly before. A
// worker that drops items which Begin rejects must process all objects in a gained range. Calls are serialized, on a
// separate goroutine, until remove is called, which waits for the last call and must not be called from f.
func (r *Ring) OnGain(f func(gained client.Ranges)) (remove func()) {
	g := &gain{wake: make(chan struct{}, 1)}
	r.locked(func() {
		r.gains[g] = struct{}{}
		g.note(r.published.owned)
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-g.wake:
				var gained slots
				r.locked(func() { gained = g.take() })
				if !gained.empty() {
					f(gained.ranges(r.config.Key))
				}
			}
		}
	}()
	return sync.OnceFunc(func() {
		r.locked(func() { delete(r.gains, g) })
		close(stop)
		<-stopped
	})
}

// metrics are the metrics of a member. Fields that are not collectors are protected by the lock of the ring.
type metrics struct {
	ring *Ring
	all  []prometheus.Collector

	moves            prometheus.Counter
	seconds          prometheus.Histogram
	unowned, overrun prometheus.Counter
	// comingSince is when a slot was first observed to move to this member.
	comingSince [slotCount]time.Duration
	// updated is the time of the last update, and table the table at that time.
	updated time.Duration
	table   *table
}

// gain collects the gained slots for one caller of OnGain, with the lock of the ring held.
type gain struct {
	pending slots
	wake    chan struct{}
}

func (g *gain) note(gained slots) {
	if g.pending = g.pending.or(gained); !g.pending.empty() {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// take returns the slots gained since the last call.
func (g *gain) take() slots {
	taken := g.pending
	g.pending = slots{}
	return taken
}

type following struct {
	*client.ChangingRanges

	ring *Ring
}

// An informer calls Follow if its source has this method.
var _ interface {
	Follow(loaded func() client.Ranges) (stop func())
} = following{}

func (f following) Follow(loaded func() client.Ranges) (stop func()) {
	f.ring.locked(func() { f.ring.followers[&loaded] = struct{}{} })
	return func() {
		f.ring.locked(func() { delete(f.ring.followers, &loaded) })
	}
}
