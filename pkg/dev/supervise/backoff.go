package supervise

import (
	"cmp"
	"time"
)

// Backoff determines the delay before a component is restarted. It doubles after each exit, up to a maximum, and is
// reset after the component was healthy for a while. Zero fields have defaults.
type Backoff struct {
	// Initial is the first delay; 0.5 s by default.
	Initial time.Duration
	// Max is the maximum delay; 30 s by default.
	Max time.Duration
	// HealthyAfter is how long a component must have been ready to reset the delay; 1 min by default.
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

// after returns the delay after the exit of a component that had been ready for the given time.
func (p *pauses) after(healthy time.Duration) time.Duration {
	if p.next == 0 || healthy >= p.HealthyAfter {
		p.next = p.Initial
	}
	pause := min(p.next, p.Max)
	p.next = min(2*pause, p.Max)
	return pause
}
