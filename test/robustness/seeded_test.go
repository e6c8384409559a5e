package robustness

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/robustness/history"
)

// seededBug names the environment variable that chooses the bug of a binary with
// the build tag seededbug, in pkg/storage.
const seededBug = "SHARDPLANE_SEEDED_BUG"

// TestCatchesSeededBugs runs a shard that loses watch events, and one that loses
// pages of lists: what checks histories must be seen to find something.
func TestCatchesSeededBugs(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "shardplane")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-w", "-tags=seededbug", "-o", binary, "./cmd/shardplane")
	build.Dir = harness.Root()
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)

	for bug, wants := range map[string][]history.Property{
		"dropevent": {history.Reliable, history.Resumable},
		"skippage":  {history.ListsAgree},
	} {
		t.Run(bug, func(t *testing.T) {
			t.Setenv(seededBug, bug)
			c := harness.Start(t, harness.Options{Mode: harness.Processes, Binary: binary, Without: []string{"cache-server", "front-proxy"}})
			r := &run{t: t, cluster: c, seed: seed(), rec: newRecorder(), pause: 30 * time.Millisecond}
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
