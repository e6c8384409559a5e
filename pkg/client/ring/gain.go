package ring

import (
	"sync"
)

// gain collects the gained slots for one caller of OnGain.
type gain struct {
	mu      sync.Mutex
	pending slots
	wake    chan struct{}
}

func (g *gain) note(gained slots) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pending = g.pending.or(gained); !g.pending.empty() {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// take returns the slots gained since the last call.
func (g *gain) take() slots {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := g.pending
	g.pending = slots{}
	return taken
}
