package mutants

// definitions are mutants of custom resources.
var definitions = []Mutant{
	{
		Name: "kept-names", Rule: "a definition that was not written has no names",
		Edits: []Edit{{
			File: "pkg/customresource/definitions/reservation.go",
			Before: `	r.of.mu.Lock()
	r.of.freeLocked(r)
	scope`,
			After: `	r.of.mu.Lock()
	scope`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestRefusedDefinitionsHoldNothing",
	},
}
