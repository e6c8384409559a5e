package robustness

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/mutants"
	"github.com/shardplane/shardplane/test/robustness/history"
)

// signature is the violation that a mutant causes.
type signature struct {
	property history.Property
	text     string
}

// signatures are the expected violations of the mutants of this suite.
var signatures = map[string]signature{
	"lost-event":            {history.Reliable, "the stream lacks"},
	"skipped-page":          {history.ListsAgree, "and the list shows {RV:0"},
	"duplicate-event":       {history.Unique, "was sent twice"},
	"repeating-watch":       {history.Resumable, "came in a stream from"},
	"early-bookmark":        {history.Bookmarkable, "followed a bookmark"},
	"crossing-event":        {history.Isolated, "the response contains"},
	"stale-page":            {history.ReadsOwnWrites, "returned at"},
	"drifting-pages":        {history.ListsAgree, "the first one at"},
	"unclaimed-list":        {history.Claimed, "list contains"},
	"unclaimed-event":       {history.Claimed, "MODIFIED contains"},
	"missing-deleted-event": {history.Transitions, "is MODIFIED, expected DELETED"},
}

// TestCatchesMutants runs a shard with a bug of each kind in its lists and watches, and checks that
// each is detected.
func TestCatchesMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: builds servers with mutants")
	}
	names := mutants.Of(mutants.SuiteRobustness)
	c := harness.Start(t, harness.Options{Mode: harness.Processes, Binary: harness.Mutated(t, names...), Without: []string{"cache-server", "front-proxy"}})
	r := &run{t: t, cluster: c, seed: harness.Seed(*seedFlag), rec: newRecorder(), pause: 30 * time.Millisecond}
	r.targets = []*target{configMaps.on("root", newConn(t, c.Shard(0)), nil, workspaces(t, c.Shard(0), "root", 2))}
	r.addExport(r.targets[0].direct, r.targets[0].clusters[0], r.targets[0])
	h := r.work(func() {
		r.progress(300)
		require.Eventually(t, func() bool { return r.rec.claims() > len(r.export.claimed.clusters)+1 }, testTimeout, 10*time.Millisecond, "no claim changed")
	})
	violations := history.Check(h)
	t.Logf("seed %d: %s; %d violations", r.seed, summary(h), len(violations))
	for _, name := range names {
		require.Contains(t, signatures, name, "the mutant %s has no signature", name)
		found := slices.DeleteFunc(slices.Clone(violations), func(v history.Violation) bool {
			return v.Property != signatures[name].property || !strings.Contains(v.What, signatures[name].text)
		})
		require.NotEmpty(t, found, "mutant %s was not detected", name)
		t.Logf("Detected %s %d times: %s", name, len(found), found[0])
	}
}
