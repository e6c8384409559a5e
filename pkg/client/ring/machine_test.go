package ring

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRenewalCountsFromWhenItWasSent: others count from when they see it, which may be before
// it is answered.
func TestRenewalCountsFromWhenItWasSent(t *testing.T) {
	m := newMachine(newWorld(0).settings, func() string { return "a" })
	at := time.Minute
	for _, verb := range []verb{createOwn, readTable} {
		r := m.next(at, slots{})
		require.Equal(t, verb, r.verb)
		at += time.Second
		a := answer{lease: r.lease}
		if verb == readTable {
			a.outcome = notFound
		}
		a.lease.version = "1"
		m.answered(at, r, a)
	}
	require.Equal(t, time.Minute+defaultRenewDeadline, m.until())
}
