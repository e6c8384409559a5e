package isolation

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/workqueue"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/mutants"
)

// timingMutant is the mutant that response times reveal.
const timingMutant = "denied-at-once"

// TestCatchesMutants attacks servers with bugs: they ignore the logical cluster of some lists,
// confuse service accounts of the same name, and disclose existence in messages and response times.
// The suite must detect each of them.
func TestCatchesMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: builds servers with mutants")
	}
	names := append(mutants.Of(mutants.SuiteIsolation), "namesake")
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Binary: harness.Mutated(t, names...), Shards: 2, DevTokens: true,
		ExtraArgs:   map[string][]string{"front-proxy": {"--index-timeout=1ms"}},
		SecondProxy: []string{"--index-timeout=" + slowTimeout.String()},
	})
	w := newWorld(t, c)
	matches := map[string]func(f *finding) bool{
		"forgotten-cluster": func(f *finding) bool {
			return strings.HasPrefix(f.message, "leaked") && strings.Contains(f.in.raw, "$A$") && strings.Contains(f.in.raw, "labelSelector=")
		},
		"namesake": func(f *finding) bool {
			return strings.HasPrefix(f.message, "leaked") && strings.Contains(w.attackers[f.in.attacker].name, "service account") && strings.Contains(f.in.raw, "$B$")
		},
		"disclosed-existence": func(f *finding) bool { return strings.HasPrefix(f.message, "existence disclosed") },
	}
	// A subset of the requests of TestIsolation: generated ones, every fourth of the table, and
	// lists by label.
	inputs := w.generateInputs(harness.Seed(*seedFlag), 400)
	for i, in := range w.tabulated() {
		if in.target < 2 && (i%4 == 0 || strings.Contains(in.raw, "labelSelector=")) {
			inputs = append(inputs, in)
		}
	}
	// Reads first, because other requests may remove the rights of the attackers in alpha.
	reads := func(in input) int {
		if strings.HasPrefix(in.raw, "GET ") {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(inputs, func(a, b input) int { return reads(a) - reads(b) })
	// Response times first, because attackers may gain rights later.
	require.NotEmpty(t, w.times(t), "mutant %s was not detected", timingMutant)
	findings := w.attackAll(t, inputs)
	for _, name := range names {
		if name == timingMutant {
			continue
		}
		require.Contains(t, matches, name, "no findings are specified for the mutant")
		n := 0
		for _, f := range findings {
			if matches[name](f) {
				n++
			}
		}
		require.Positive(t, n, "mutant %s was not detected", name)
		t.Logf("%d of %d inputs detected %s", n, len(inputs), name)
	}
}

// generateInputs returns generated inputs.
func (w *world) generateInputs(seed, n uint64) []input {
	w.t.Logf("seed %d", seed)
	inputs := make([]input, n)
	for i := range inputs {
		inputs[i] = w.generate(seed, uint64(i)) //nolint:gosec // an index
	}
	return inputs
}

// attackAll sends inputs and returns their findings.
func (w *world) attackAll(t *testing.T, inputs []input) []*finding {
	t.Helper()
	var mu sync.Mutex
	var findings []*finding
	workqueue.ParallelizeUntil(t.Context(), *workersFlag, len(inputs), func(i int) {
		if _, f := w.attack(t.Context(), inputs[i]); f != nil {
			mu.Lock()
			defer mu.Unlock()
			findings = append(findings, f)
		}
	})
	return findings
}
