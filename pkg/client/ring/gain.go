package ring

import (
	"sync"
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
