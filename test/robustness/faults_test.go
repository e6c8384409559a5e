package robustness

import (
	"math/rand/v2"
	"net/http"
	"regexp"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

// fault injects a fault and ends it.
type fault struct {
	name string
	do   func(rng *rand.Rand)
	// rare faults take long. They are not part of a short run.
	rare bool
}

// faultsOf returns the faults of a component.
func (r *run) faultsOf(component *harness.Component) []fault {
	return []fault{
		{name: "kill " + component.Name, do: func(rng *rand.Rand) { kill(r, component, rng) }},
		{name: "kill " + component.Name + " while it starts", do: func(rng *rand.Rand) { killStart(r, component, rng) }},
		{name: "restart " + component.Name, do: func(*rand.Rand) { component.Restart() }, rare: true},
		{name: "pause " + component.Name, do: func(rng *rand.Rand) { pause(r, component, time.Duration(rng.Int64N(int64(3*time.Second)))) }, rare: true},
	}
}

func kill(r *run, component *harness.Component, rng *rand.Rand) {
	component.Kill()
	pace(r.t.Context(), upTo(rng, 300*time.Millisecond))
	component.Start()
}

// killStart kills a component, and then some of its starts after a random time.
func killStart(r *run, component *harness.Component, rng *rand.Rand) {
	component.Kill()
	for range 1 + rng.IntN(2) {
		component.Launch()
		pace(r.t.Context(), upTo(rng, 1500*time.Millisecond))
		component.Kill()
	}
	component.Start()
}

func pause(r *run, component *harness.Component, d time.Duration) {
	component.Pause()
	pace(r.t.Context(), d)
	component.Resume()
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// startInterrupted starts a new cluster and kills some of its components during their first start.
func startInterrupted(r *run, times int) {
	rng := r.rng()
	for _, name := range r.components {
		r.cluster.Component(name).Launch()
	}
	for range times {
		component := r.cluster.Component(r.components[rng.IntN(len(r.components))])
		pace(r.t.Context(), upTo(rng, time.Second))
		r.t.Logf("kill %s during its first start", component.Name)
		component.Kill()
		component.Launch()
	}
	for _, name := range r.components {
		r.cluster.Component(name).WaitReady()
	}
}

// injectFaults injects faults until a deadline, at least one of each group. Clients make progress
// between two faults.
func (r *run) injectFaults(groups [][]fault, deadline time.Time) {
	rng := r.rng()
	for first := true; first || time.Now().Before(deadline); first = false {
		rng.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
		for _, group := range groups {
			r.progress(r.writes)
			f := group[rng.IntN(len(group))]
			for first && r.short && f.rare {
				f = group[rng.IntN(len(group))]
			}
			r.t.Logf("%s", f.name)
			f.do(rng)
		}
	}
	r.progress(r.writes)
}

// leader returns the replica that runs the controllers.
func (r *run) leader() *harness.Component {
	r.t.Helper()
	var leader *harness.Component
	require.Eventually(r.t, func() bool {
		for name, c := range r.replicas {
			code, metrics, err := c.do(r.t.Context(), http.MethodGet, "/metrics", nil)
			if err == nil && code == http.StatusOK && isLeader.Match(metrics) {
				leader = r.cluster.Component(name)
				return true
			}
		}
		return false
	}, testTimeout, 100*time.Millisecond, "no replica is the leader")
	return leader
}

// isLeader matches the metrics of the leader.
var isLeader = regexp.MustCompile(`(?m)^leader_election_master_status\{.* 1$`)

// leaderFaults returns the faults of the current leader.
func (r *run) leaderFaults() []fault {
	return []fault{
		{name: "kill the leader", do: func(rng *rand.Rand) { kill(r, r.leader(), rng) }},
		{name: "kill the leader while it starts again", do: func(rng *rand.Rand) { killStart(r, r.leader(), rng) }, rare: true},
		{name: "pause the leader", do: func(rng *rand.Rand) { pause(r, r.leader(), upTo(rng, 3*time.Second)) }},
		{name: "pause the leader until its lease expires", do: func(*rand.Rand) { pause(r, r.leader(), 16*time.Second) }, rare: true},
	}
}
