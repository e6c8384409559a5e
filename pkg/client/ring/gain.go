package ring

import (
	"sync"

	"github.com/shardplane/shardplane/pkg/client"
)

// gain tells somebody what this member comes to have.
type gain struct {
	mu      sync.Mutex
	pending slots
	// handed are what former members have left to do in some of them.
	handed map[int]string
	// begun are the slots of which it has been told since they came: of others it does not know
	// what is left to do.
	begun slots
	// telling are those that were taken, as long as they have not come again, and have not gone.
	telling slots
	look    chan struct{}
}

func newGain() *gain { return &gain{look: make(chan struct{}, 1), handed: map[int]string{}} }

// note notes what has come to a member since the last call, which is called whenever that may
// have changed.
func (g *gain) note(m *machine, gained slots) {
	g.mu.Lock()
	defer g.mu.Unlock()
	had := m.mine.has.or(m.mine.leaving)
	had = had.minus(gained)
	g.begun, g.telling = g.begun.and(had), g.telling.and(had)
	for slot := range slotCount {
		if !gained.has(slot) {
			continue
		}
		if text, ok := m.handed[slot]; ok && !g.pending.has(slot) {
			g.handed[slot] = text
		} else {
			delete(g.handed, slot) // it had that a moment before: what was dropped since is all
		}
	}
	if g.pending = g.pending.or(gained); !g.pending.empty() {
		select {
		case g.look <- struct{}{}:
		default:
		}
	}
}

// take returns what has come since the last call. The caller calls told when it has told of it.
func (g *gain) take() (gained slots, handed map[int]string, told func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken, handed := g.pending, g.handed
	g.pending, g.handed = slots{}, map[int]string{}
	g.telling = taken
	return taken, handed, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.begun = g.begun.or(g.telling)
	}
}

// hasBegun reports whether all that came in some slots has been told.
func (g *gain) hasBegun(in slots) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := in.minus(g.begun)
	return rest.empty()
}

// OnGain has f called with what this member may work on, and then with what it comes to have,
// also if it had that a moment before: whoever drops what Begin refuses begins with all of the
// objects in there. Calls come one after the other, on a goroutine of their own, until remove
// is called, which waits for the last one: not from f.
func (r *Ring) OnGain(f func(gained client.Ranges)) (remove func()) {
	return r.tellGains(newGain(), func(gained slots, _ map[int]string) { f(gained.ranges(r.config.Key)) })
}

// tellGains has f called with what this member has, and what comes to it.
func (r *Ring) tellGains(g *gain, f func(gained slots, handed map[int]string)) (remove func()) {
	r.mu.Lock()
	r.gains[g] = struct{}{}
	g.note(r.machine, r.view.owned)
	r.mu.Unlock()

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-g.look:
				if gained, handed, told := g.take(); !gained.empty() {
					f(gained, handed)
					told()
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
