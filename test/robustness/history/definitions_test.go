package history

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// churned is a history of definitions in which nothing is wrong: things are
// made, changed, and deleted; gadgets want the kind of things while these exist,
// and have it when these are gone.
func churned() *History {
	d := func(name string, kind Kind, outcome Outcome, variant string, seconds int64, names ...string) *Definition {
		start := seconds * int64(1e9)
		return &Definition{
			Server: "root", Cluster: "aa", Name: name, Kind: kind, Outcome: outcome, Variant: variant, Names: names,
			Start: start, End: start + 5, Established: outcome == OK, Accepted: outcome == OK,
		}
	}
	use := func(name string, seconds int64, code int, variant string) *Use {
		start := seconds * int64(1e9)
		return &Use{Server: "root", Cluster: "aa", Definition: name, Start: start, End: start + 5, Code: code, Variant: variant}
	}
	contested := d("gadgets", Create, OK, "a", 12, "gadgets", "Thing")
	contested.Established, contested.Accepted = false, false
	return &History{
		Probes: []Probe{{Name: "no schema", Code: 422, Want: 422}},
		Definitions: []*Definition{
			d("things.wrong", Create, Refused, "a", 8, "gizmos", "Thing"),
			d("things", Create, OK, "a", 10, "things", "Thing"), contested, d("things", Update, OK, "b", 14, "things", "Thing"),
			d("things", Delete, Unknown, "b", 20, "things", "Thing"), d("things", Get, NotFound, "", 22),
			d("gadgets", Get, OK, "a", 40, "gadgets", "Thing"),
		},
		Uses: []*Use{
			use("things", 11, 201, "a"), use("gadgets", 13, 404, ""), use("things", 15, 201, "b"), use("things", 21, 404, ""),
			use("things", 23, 200, ""), use("things", 30, 404, ""), use("gadgets", 41, 201, "a"),
		},
	}
}

// TestDefinitions spoils the history of definitions in one place at a time.
func TestDefinitions(t *testing.T) {
	require.Empty(t, Check(churned()))
	for _, c := range []struct {
		name  string
		want  Property
		spoil func(*History)
	}{
		{"what was acknowledged is not served", DefinitionsServed, func(h *History) { h.Uses[0].Code = 404 }},
		{"what was changed is not served", DefinitionsServed, func(h *History) { h.Uses[2].Code = 404 }},
		{"the schema is the one before", DefinitionsServed, func(h *History) { h.Uses[2].Variant = "a" }},
		{"what is gone is served", DefinitionsServed, func(h *History) { h.Uses[5].Code = 200 }},
		{"a bad definition is taken", DefinitionsServed, func(h *History) { h.Probes[0].Code = 201 }},
		{"a definition that is gone holds names", NamesFree, func(h *History) { h.Definitions[6].Accepted = false }},
		{"a refused definition holds names", NamesFree, func(h *History) {
			h.Definitions = slices.Delete(h.Definitions, 1, 2)
			h.Definitions = append(h.Definitions[:2], h.Definitions[5:]...)
			h.Uses = nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := churned()
			c.spoil(h)
			violations := Check(h)
			require.True(t, slices.ContainsFunc(violations, func(v Violation) bool { return v.Property == c.want }), "want a violation of %q, got %v", c.want, violations)
		})
	}
}
