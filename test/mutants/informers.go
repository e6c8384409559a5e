package mutants

// informers are mutants of what handlers of an informer are told, of which the end is right.
var informers = []Mutant{
	{
		Name: "move-told-as-deletion", Rule: "a range that moves is no deletion",
		Edits: []Edit{{
			File:   "pkg/client/informer.go",
			Before: `last: old, leave: RangeMoved})`,
			After:  `last: old})`,
		}},
		CaughtBy: "./pkg/client", Test: "TestRangesModel",
	},
	{
		Name: "repeated-update", Rule: "a handler is told of each state of an object once",
		Edits: []Edit{{
			File:   "pkg/client/informer.go",
			Before: ` && equality.Semantic.DeepEqual(old, obj) {`,
			After:  ` && equality.Semantic.DeepEqual(old, obj) && i.options.Ranges == nil {`,
		}},
		CaughtBy: "./pkg/client", Test: "TestRangesModel",
	},
}
