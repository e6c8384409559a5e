package supervise

import (
	"cmp"
	"time"
)

// Backoff says how long to wait before a component that died is started again:
// twice as long after each death, up to a limit, and the first pause again
// after it was healthy for a while. The zero value of a field stands for its
// default.
type Backoff struct {
	// Initial is the first pause; 0.5 s by default.
	Initial time.Duration
	// Max is the longest; 30 s by default.
	Max time.Duration
	// HealthyAfter is how long a component must have been ready for its
	// earlier deaths to be forgotten; 1 min by default.
	HealthyAfter time.Duration
}

func (b Backoff) withDefaults() Backoff {
	b.Initial = cmp.Or(b.Initial, 500*time.Millisecond)
	b.Max = cmp.Or(b.Max, 30*time.Second)
	b.HealthyAfter = cmp.Or(b.HealthyAfter, time.Minute)
	return b
}

// pauses is the state of a backoff.
type pauses struct {
	Backoff
	next time.Duration
}

// after returns the pause after a death of a component that had been ready for
// the given time.
func (p *pauses) after(healthy time.Duration) time.Duration {
	if p.next == 0 || healthy >= p.HealthyAfter {
		p.next = p.Initial
	}
	pause := min(p.next, p.Max)
	p.next = min(2*pause, p.Max)
	return pause
}
