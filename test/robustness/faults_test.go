package robustness

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

// fault breaks something and leaves it whole.
type fault struct {
	name string
	do   func(rng *rand.Rand)
	// rare faults take long: they are not part of the first round.
	rare bool
}

// deck is what a run may do to a component.
func (r *run) deck(component *harness.Component) []fault {
	return []fault{
		{name: "kill " + component.Name, do: func(rng *rand.Rand) { kill(r, component, rng) }},
		{name: "kill " + component.Name + " while it starts", do: func(rng *rand.Rand) { killStart(r, component, rng) }},
		{name: "restart " + component.Name, do: func(*rand.Rand) { component.Restart() }, rare: true},
		{name: "pause " + component.Name, do: func(rng *rand.Rand) { still(r, component, time.Duration(rng.Int64N(int64(3*time.Second)))) }, rare: true},
	}
}

func kill(r *run, component *harness.Component, rng *rand.Rand) {
	component.Kill()
	pace(r.t.Context(), upTo(rng, 300*time.Millisecond))
	component.Start()
}

// killStart kills a component and then some of its starts, each at another place.
func killStart(r *run, component *harness.Component, rng *rand.Rand) {
	component.Kill()
	for range 1 + rng.IntN(2) {
		component.Launch()
		pace(r.t.Context(), upTo(rng, 1500*time.Millisecond))
		component.Kill()
	}
	component.Start()
}

func still(r *run, component *harness.Component, d time.Duration) {
	component.Pause()
	pace(r.t.Context(), d)
	component.Resume()
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// interrupted starts a cluster, none of which has run before, and kills its
// components again and again while they make what they need.
func interrupted(r *run, times int) {
	rng := r.rng()
	names := append([]string{}, r.components...)
	for _, name := range names {
		r.cluster.Component(name).Launch()
	}
	for range times {
		component := r.cluster.Component(names[rng.IntN(len(names))])
		pace(r.t.Context(), upTo(rng, time.Second))
		r.t.Logf("kill %s while the cluster starts for the first time", component.Name)
		component.Kill()
		component.Launch()
	}
	for _, name := range names {
		r.cluster.Component(name).WaitReady()
	}
}

// breakAll deals faults until a time, at least one of each hand. Between two
// faults, clients get something done.
func (r *run) breakAll(hands [][]fault, deadline time.Time) {
	rng := r.rng()
	for first := true; first || time.Now().Before(deadline); first = false {
		rng.Shuffle(len(hands), func(i, j int) { hands[i], hands[j] = hands[j], hands[i] })
		for _, hand := range hands {
			r.progress(100)
			f := hand[rng.IntN(len(hand))]
			for first && r.short && f.rare {
				f = hand[rng.IntN(len(hand))]
			}
			r.t.Logf("%s", f.name)
			f.do(rng)
		}
	}
	r.progress(100)
}

// leader returns the replica that runs the controllers.
func (r *run) leader() *harness.Component {
	r.t.Helper()
	var leader *harness.Component
	require.Eventually(r.t, func() bool {
		for name, c := range r.replicas {
			code, metrics, err := c.do(r.t.Context(), http.MethodGet, "/metrics", nil)
			if err == nil && code == http.StatusOK && leads(metrics) {
				leader = r.cluster.Component(name)
				return true
			}
		}
		return false
	}, testTimeout, 100*time.Millisecond, "a replica leads")
	return leader
}

// leads reports whether the metrics are those of a leader.
func leads(metrics []byte) bool {
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "leader_election_master_status{") && strings.HasSuffix(line, " 1") {
			return true
		}
	}
	return false
}

// ofLeader are the faults of whichever replica leads at the time.
func (r *run) ofLeader() []fault {
	return []fault{
		{name: "kill the leader", do: func(rng *rand.Rand) { kill(r, r.leader(), rng) }},
		{name: "kill the leader while it starts again", do: func(rng *rand.Rand) { killStart(r, r.leader(), rng) }, rare: true},
		{name: "pause the leader", do: func(rng *rand.Rand) { still(r, r.leader(), upTo(rng, 3*time.Second)) }},
		{name: "pause the leader until it leads no more", do: func(*rand.Rand) { still(r, r.leader(), 16*time.Second) }, rare: true},
	}
}
