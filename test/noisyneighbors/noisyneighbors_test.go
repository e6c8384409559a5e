package noisyneighbors

import (
	"slices"
	"testing"
)

// gate contains the rows that also run with -short.
var gate = []string{
	"busy", "load", "metrics", "storage", "rules", "webhooks",
	"defaults", "documents",
}

// TestNoisyNeighbors runs the rows of the table in doc.go sequentially, because some measure the heap
// of the process.
func TestNoisyNeighbors(t *testing.T) {
	w := newWorld(t)
	w.observe(t)
	for _, row := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"busy", busy},
		{"load", load},
		{"metrics", metrics},
		{"columns", columns},
		{"patterns", patterns},
		{"defaults", defaults},
		{"alternatives", alternatives},
		{"invalid", invalid},
		{"keyed", keyed},
		{"patches", patches},
		{"documents", documents},
		{"conversion", conversion},
		{"watches", watches},
		{"events", events},
		{"storage", storage},
		{"rules", rules},
		{"policies", policies},
		{"types", workspaceTypes},
		{"replicas", replicas},
		{"cached", cached},
		{"webhooks", webhooks},
		{"providers", providers},
		{"exports", exports},
		{"consumers", consumers},
		{"hanging", hanging},
		{"bodies", slowBodies},
		{"connections", connections},
		{"floods", floods},
		{"readers", readers},
		{"paths", paths},
		{"overdue", overdue},
		{"homes", homes},
		{"tokens", tokens},
	} {
		t.Run(row.name, func(t *testing.T) {
			if testing.Short() && !slices.Contains(gate, row.name) {
				t.Skip("nightly: the gate tests the limits of this row at lower levels, e.g. in pkg/request/schemacosts")
			}
			w.measured(t, row.name, row.run)
		})
	}
}
