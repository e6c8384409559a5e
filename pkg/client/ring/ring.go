package ring

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

// Ring is a member of a ring. Make one with New, and run it once.
type Ring struct {
	config Config
	server *server
	gate   *gate
	start  time.Time
	// holds is what is owned and what is coming.
	holds   *client.ChangingRanges
	metrics *metrics
	// followers are asked without the lock.
	followers followers

	mu      sync.Mutex
	machine *machine
	ran     bool
	over    bool
	// view is what was told last.
	view    view
	changed chan struct{}
	gains   map[*gain]struct{}
	// seen are the Leases that the watch has shown and the machine has not been told of, and
	// look tells that there are some.
	seen []sighting
	look chan struct{}
}

// view is what a member has, as it is told.
type view struct {
	owned, coming slots
	// leaving are slots that move away, and that are held until they have.
	leaving slots
}

// isolated is what is left of it when the Lease was not renewed in time: nothing to work on.
func (v view) isolated() view {
	return view{coming: v.coming.or(v.owned), leaving: v.leaving}
}

// sighting is a Lease as the watch shows it.
type sighting struct {
	lease   *coordinationv1.Lease
	deleted bool
}

// now is the reading of the member's monotonic clock.
func (r *Ring) now() time.Duration { return time.Since(r.start) }

func (r *Ring) saw(s sighting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, s)
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// end ends all work.
func (r *Ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.machine.phase = gone
	r.gate.set(r.machine.grants(r.now(), r.gate.busy()))
	r.tell()
}

// Begin begins work on a hash, such as that of an object's logical cluster (client.HashOf). ok
// is false if this member does not have the hash, or cannot renew its Lease. Otherwise the
// caller uses the context that it returns, which ends when the hash goes elsewhere, and calls
// end when the work is over, which is GracePeriod after the end of that context at the latest.
func (r *Ring) Begin(ctx context.Context, hash uint64) (work context.Context, end func(), ok bool) {
	return r.gate.begin(ctx, hash)
}

// Ranges returns the hashes that this member may work on now, and those that it is to load and
// not to work on yet: because they are about to come, or because the server cannot be reached.
func (r *Ring) Ranges() (owned, coming client.Ranges) {
	v := r.shown()
	return v.owned.ranges(r.config.Key), v.coming.ranges(r.config.Key)
}

// shown returns the view of this moment.
func (r *Ring) shown() view {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if now >= r.machine.grants(now, slots{}).until { // which was not told yet, as after a freeze
		return r.view.isolated()
	}
	return r.view
}

// Changed returns a channel that is closed when Ranges returns something else than at the time
// of this call.
func (r *Ring) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Holds returns what is owned, coming and not gone yet as one, for client.InformerOptions. What moves
// to this member stays with the other one until all informers that run with it have loaded that,
// or for LoadTimeout.
func (r *Ring) LoadedRanges() client.RangeSource { return following{r.holds, &r.followers} }

// tell tells what this member has, under the lock, after the gate was set by it.
func (r *Ring) tell() {
	now, m := r.now(), r.machine
	g := m.grants(now, slots{})
	v := view{owned: g.owned, coming: m.coming()}
	if now >= g.until {
		v = v.isolated()
	}
	if m.phase == taking {
		v.leaving = m.mine.leaving
	}
	gained := v.owned.minus(r.view.owned)
	for g := range r.gains {
		g.note(gained)
	}
	if v == r.view {
		return
	}
	r.view = v
	all := v.owned.or(v.coming)
	all = all.or(v.leaving)
	r.holds.Set(all.ranges(r.config.Key))
	close(r.changed)
	r.changed = make(chan struct{})
}

// OnGain has f called with what this member may work on, and then with what it comes to have,
// also if it had that a moment before: whoever drops what Begin refuses begins with all of the
// objects in there. Calls come one after the other, on a goroutine of their own, until remove
// is called, which waits for the last one: not from f.
func (r *Ring) OnGain(f func(gained client.Ranges)) (remove func()) {
	g := &gain{look: make(chan struct{}, 1)}
	r.mu.Lock()
	r.gains[g] = struct{}{}
	g.note(r.view.owned)
	r.mu.Unlock()

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-g.look:
				if gained := g.take(); !gained.empty() {
					f(gained.ranges(r.config.Key))
				}
			}
		}
	}()
	return sync.OnceFunc(func() {
		r.mu.Lock()
		delete(r.gains, g)
		r.mu.Unlock()
		close(stop)
		<-stopped
	})
}

// metrics are those of one member. All but what is read when they are collected is under the
// lock of the ring.
type metrics struct {
	ring *Ring

	members, share, ranges, epoch, isolated *prometheus.Desc

	moves   prometheus.Counter
	seconds prometheus.Histogram
	unowned prometheus.Counter
	overrun prometheus.Counter
	// comingSince is when a slot was first seen to come to this member.
	comingSince [slotCount]time.Duration
	// looked is when the coordinator looked last at what nobody works on.
	looked time.Duration
}
