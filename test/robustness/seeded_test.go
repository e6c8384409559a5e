package robustness

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/robustness/history"
)

// TestCatchesSeededBugs runs a shard that loses watch events, and one that loses
// pages of lists: what checks histories must be seen to find something.
func TestCatchesSeededBugs(t *testing.T) {
	for bug, wants := range map[string][]history.Property{
		"dropevent": {history.Reliable, history.Resumable},
		"skippage":  {history.ListsAgree},
	} {
		t.Run(bug, func(t *testing.T) {
			c := harness.Start(t, harness.Options{Mode: harness.Processes, Binary: harness.SeededBugs(t, bug), Without: []string{"cache-server", "front-proxy"}})
			r := &run{t: t, cluster: c, seed: harness.Seed(*seedFlag), rec: newRecorder(), pause: 30 * time.Millisecond}
			r.targets = []*target{{
				domain: history.Domain{Server: "root", Resource: "configmaps"}, direct: newConn(t, c.Shard(0)), clusters: workspaces(t, c.Shard(0), "root", 2),
				group: "/api/v1", namespace: "default", apiVersion: "v1", kind: "ConfigMap",
			}}
			h := r.work(func() { r.progress(150) })
			violations := history.Check(h)
			t.Logf("seed %d: %s; %d violations", r.seed, summary(h), len(violations))
			found := slices.IndexFunc(violations, func(v history.Violation) bool { return slices.Contains(wants, v.Property) })
			require.GreaterOrEqual(t, found, 0, "the seeded bug was not noticed")
			t.Logf("noticed: %s", violations[found])
		})
	}
}
