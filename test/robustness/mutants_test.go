package robustness

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/mutants"
	"github.com/shardplane/shardplane/test/robustness/history"
)

// noticed says which property each mutant of this suite breaks, of which one
// must be seen to be broken.
var noticed = map[string][]history.Property{
	"lost-event":   {history.Reliable, history.Resumable},
	"skipped-page": {history.ListsAgree},
}

// TestCatchesMutants runs a shard that loses watch events and pages of lists:
// what checks histories must be seen to find something.
func TestCatchesMutants(t *testing.T) {
	names := mutants.Of(mutants.SuiteRobustness)
	c := harness.Start(t, harness.Options{Mode: harness.Processes, Binary: harness.Mutated(t, names...), Without: []string{"cache-server", "front-proxy"}})
	r := &run{t: t, cluster: c, seed: harness.Seed(*seedFlag), rec: newRecorder(), pause: 30 * time.Millisecond}
	r.targets = []*target{{
		domain: history.Domain{Server: "root", Resource: "configmaps"}, direct: newConn(t, c.Shard(0)), clusters: workspaces(t, c.Shard(0), "root", 2),
		group: "/api/v1", namespace: "default", apiVersion: "v1", kind: "ConfigMap",
	}}
	h := r.work(func() { r.progress(150) })
	violations := history.Check(h)
	t.Logf("seed %d: %s; %d violations", r.seed, summary(h), len(violations))
	for _, name := range names {
		require.Contains(t, noticed, name, "how is it noticed?")
		found := slices.IndexFunc(violations, func(v history.Violation) bool { return slices.Contains(noticed[name], v.Property) })
		require.GreaterOrEqual(t, found, 0, "nothing noticed the mutant %s", name)
		t.Logf("noticed %s: %s", name, violations[found])
	}
}
