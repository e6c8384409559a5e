package mutants

// replicas are mutants of controllers and the cache server.
var replicas = []Mutant{
	{
		Name: "replica-kept", Rule: "the replica of an object that is gone goes, too",
		Edits: []Edit{{
			File:   "pkg/controllers/replication/decide.go",
			Before: `	wanted := local != nil && resource.selects(local)`,
			After:  `	wanted := local != nil`,
		}},
		CaughtBy: "./pkg/controllers/replication", Test: "TestDecide",
	},
	{
		Name: "replica-stale", Rule: "a replica is compared by its whole content",
		Edits: []Edit{{
			File:   "pkg/controllers/replication/decide.go",
			Before: `		!maps.Equal(want.GetAnnotations(), ownAnnotations(replica)) ||`,
			After:  `		len(want.GetAnnotations()) != len(ownAnnotations(replica)) ||`,
		}},
		CaughtBy: "./pkg/controllers/replication", Test: "TestDecide",
	},
}
