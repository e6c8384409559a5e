package mutants

// informers are mutants of handlers of informers. The last state that handlers observe is correct.
var informers = []Mutant{
	{
		Name: "move-as-deletion", Rule: "if a range moves, handlers must not observe a deletion",
		Edits: []Edit{{
			File:   "pkg/client/informer.go",
			Before: `last: old, leave: RangeMoved})`,
			After:  `last: old})`,
		}},
		CaughtBy: "./pkg/client", Test: "TestRangesModel",
	},
	{
		Name: "repeated-update", Rule: "a handler observes each state of an object once",
		Edits: []Edit{{
			File:   "pkg/client/informer.go",
			Before: ` && equality.Semantic.DeepEqual(old, obj) {`,
			After:  ` && equality.Semantic.DeepEqual(old, obj) && i.options.Ranges == nil {`,
		}},
		CaughtBy: "./pkg/client", Test: "TestRangesModel",
	},
}
