package history

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// validDefinitions is a history of definitions without violations. The definition things is created,
// updated and deleted. gadgets claims the same kind, and gets it after the deletion.
func validDefinitions() *History {
	d := func(name string, kind Kind, outcome Outcome, variant string, minutes int64, names ...string) *Definition {
		start := minutes * int64(1e9)
		return &Definition{
			Server: "root", Cluster: "aa", Name: name, Kind: kind, Outcome: outcome, Variant: variant, Names: names,
			Start: start, End: start + 5, Established: outcome == OK, Accepted: outcome == OK,
		}
	}
	use := func(name string, minutes int64, code int, variant string) *Use {
		start := minutes * int64(1e9)
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

func TestDefinitions(t *testing.T) {
	require.Empty(t, Check(validDefinitions()))
	testCorruptions(t, validDefinitions, []corruption{
		{name: "established definition not served", want: DefinitionsServed, apply: func(h *History) { h.Uses[0].Code = 404 }},
		{name: "updated definition not served", want: DefinitionsServed, apply: func(h *History) { h.Uses[2].Code = 404 }},
		{name: "schema before the update", want: DefinitionsServed, apply: func(h *History) { h.Uses[2].Variant = "a" }},
		{name: "deleted definition served", want: DefinitionsServed, apply: func(h *History) { h.Uses[5].Code = 200 }},
		{name: "invalid definition accepted", want: DefinitionsServed, apply: func(h *History) { h.Probes[0].Code = 201 }},
		{name: "deleted definition owns names", want: NamesFree, apply: func(h *History) { h.Definitions[6].Accepted = false }},
		{name: "refused definition owns names", want: NamesFree, apply: func(h *History) {
			h.Definitions = slices.Delete(h.Definitions, 1, 2)
			h.Definitions = append(h.Definitions[:2], h.Definitions[5:]...)
			h.Uses = nil
		}},
	})
}
