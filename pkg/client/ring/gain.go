package ring

import (
	"sync"

	"github.com/shardplane/shardplane/pkg/client"
)

// gain tells somebody what this member comes to have.
type gain struct {
	mu      sync.Mutex
	pending slots
	look    chan struct{}
}

// note notes what has come to a member since the last call.
func (g *gain) note(gained slots) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pending = g.pending.or(gained); !g.pending.empty() {
		select {
		case g.look <- struct{}{}:
		default:
		}
	}
}

// take returns what has come since the last call.
func (g *gain) take() slots {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := g.pending
	g.pending = slots{}
	return taken
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
