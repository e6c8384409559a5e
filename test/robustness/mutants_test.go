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

// notice is how a violation reads by which a mutant is known.
type notice struct {
	property history.Property
	text     string
}

// noticed says how each mutant of this suite is noticed.
var noticed = map[string]notice{
	"lost-event":      {history.Reliable, "it lacks"},
	"skipped-page":    {history.ListsAgree, "and it shows {RV:0"},
	"duplicate-event": {history.Unique, "was sent twice"},
	"repeating-watch": {history.Resumable, "came in a stream from"},
	"early-bookmark":  {history.Bookmarkable, "followed a bookmark"},
	"crossing-event":  {history.Isolated, "it shows"},
	"stale-page":      {history.ReadsOwnWrites, "was answered at"},
	"drifting-pages":  {history.ListsAgree, "the first one at"},
	"unasked-list":    {history.Claimed, "the list shows"},
	"unasked-event":   {history.Claimed, "MODIFIED shows"},
	"leaving-unsaid":  {history.Transitions, "is MODIFIED and must be DELETED"},
}

// TestCatchesMutants runs a shard whose lists and watches have a bug of each
// kind: what checks histories must be seen to find every one.
func TestCatchesMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: builds servers with mutants")
	}
	names := mutants.Of(mutants.SuiteRobustness)
	c := harness.Start(t, harness.Options{Mode: harness.Processes, Binary: harness.Mutated(t, names...), Without: []string{"cache-server", "front-proxy"}})
	r := &run{t: t, cluster: c, seed: harness.Seed(*seedFlag), rec: newRecorder(), pause: 30 * time.Millisecond}
	r.targets = []*target{configMaps.on("root", newConn(t, c.Shard(0)), nil, workspaces(t, c.Shard(0), "root", 2))}
	r.addViews(r.targets[0].direct, r.targets[0].clusters[0], r.targets[0])
	h := r.work(func() {
		r.progress(300)
		require.Eventually(t, func() bool { return r.rec.claims() > len(r.views.claimed.clusters)+1 }, testTimeout, 10*time.Millisecond, "claims change")
	})
	violations := history.Check(h)
	t.Logf("seed %d: %s; %d violations", r.seed, summary(h), len(violations))
	for _, name := range names {
		require.Contains(t, noticed, name, "how is it noticed?")
		found := slices.DeleteFunc(slices.Clone(violations), func(v history.Violation) bool {
			return v.Property != noticed[name].property || !strings.Contains(v.What, noticed[name].text)
		})
		require.NotEmpty(t, found, "nothing noticed the mutant %s", name)
		t.Logf("noticed %s, %d times: %s", name, len(found), found[0])
	}
}
