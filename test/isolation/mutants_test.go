package isolation

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/mutants"
)

// untimely is the mutant that is noticed by times.
const untimely = "denied-at-once"

// TestCatchesMutants attacks servers that forget the logical cluster of some
// lists, take service accounts for their namesakes, and tell what exists, in words
// and by the time that they take: this
// suite must be seen to find something.
func TestCatchesMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: builds servers with mutants")
	}
	names := append(mutants.Of(mutants.SuiteIsolation), "namesake")
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Binary: harness.Mutated(t, names...), Shards: 2, DevTokens: true,
		ExtraArgs:   map[string][]string{"front-proxy": {"--index-timeout=1ms"}},
		SecondProxy: []string{"--index-timeout=" + patientTimeout.String()},
	})
	w := newWorld(t, c)
	fits := map[string]func(f *finding) bool{
		"forgotten-cluster": func(f *finding) bool {
			return strings.HasPrefix(f.what, "crossed") && strings.Contains(f.in.raw, "$A$") && strings.Contains(f.in.raw, "labelSelector=")
		},
		"namesake": func(f *finding) bool {
			return strings.HasPrefix(f.what, "crossed") && strings.Contains(w.whos[f.in.who].name, "service account") && strings.Contains(f.in.raw, "$B$")
		},
		"told-existing": func(f *finding) bool { return strings.HasPrefix(f.what, "told existing from missing") },
	}
	// What TestIsolation sends, and less of it: every fourth attack of the table,
	// and lists by label, on the servers with the mutants.
	inputs := w.some(harness.Seed(*seedFlag), 400)
	for i, in := range w.tabulated() {
		if in.target < 2 && (i%4 == 0 || strings.Contains(in.raw, "labelSelector=")) {
			inputs = append(inputs, in)
		}
	}
	// Reads first: others take away the rights that the attackers need in alpha.
	reads := func(in input) int {
		if strings.HasPrefix(in.raw, "GET ") {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(inputs, func(a, b input) int { return reads(a) - reads(b) })
	// Before attackers of these servers have what is not theirs.
	require.NotEmpty(t, w.times(t), "nothing noticed the mutant %s", untimely)
	caught := w.catch(t, inputs)
	for _, name := range names {
		if name == untimely {
			continue
		}
		require.Contains(t, fits, name, "how is it noticed?")
		n := 0
		for _, f := range caught {
			if fits[name](f) {
				n++
			}
		}
		require.Positive(t, n, "nothing noticed the mutant %s", name)
		t.Logf("%d of %d inputs noticed %s", n, len(inputs), name)
	}
}

// some are generated inputs.
func (w *world) some(seed, n uint64) []input {
	w.t.Logf("seed %d", seed)
	inputs := make([]input, n)
	for i := range inputs {
		inputs[i] = w.generate(seed, uint64(i)) //nolint:gosec // an index
	}
	return inputs
}

// catch sends inputs and returns what was wrong with the answers.
func (w *world) catch(t *testing.T, inputs []input) []*finding {
	t.Helper()
	var mu sync.Mutex
	var caught []*finding
	var wg sync.WaitGroup
	var next atomic.Int64
	for range *workersFlag {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(inputs)); i = next.Add(1) - 1 {
				if _, f := w.attack(t.Context(), inputs[i]); f != nil {
					mu.Lock()
					caught = append(caught, f)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return caught
}
