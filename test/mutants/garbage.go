package mutants

// garbage are mutants of what is deleted for the sake of owners.
var garbage = []Mutant{
	{
		Name: "hasty-absence", Rule: "an owner is absent only after a quorum was asked",
		Edits: []Edit{{
			File: "pkg/controllers/garbagecollector/judge.go",
			Before: `		if err == nil && l.owner.uid != o.references[i].UID {
			l.owner, err = c.backend.read(ctx, l.item)
		}
`,
			After: ``,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestScenarios",
	},
	{
		Name: "foreign-owner", Rule: "an owner in another logical cluster is absent",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/object.go",
			Before: `	o := owner{cluster: cluster}`,
			After:  `	o := owner{}`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestScenarios",
	},
	{
		Name: "unsettled-orphans", Rule: "an owner that orphans goes when all its dependents are known",
		Edits: []Edit{{
			File: "pkg/controllers/garbagecollector/collect.go",
			Before: `	if err := c.backend.catchUp(ctx, item, o); err != nil {
		return err
	}
	var errs []error`,
			After: `	var errs []error`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestScenarios",
	},
	{
		Name: "forgetful-graph", Rule: "while everything is told anew, no owner seems to have no dependents",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/feed.go",
			Before: `func (f *feed) begin() { f.filling, f.fresh = newGraph(), map[Item]struct{}{} }`,
			After: `func (f *feed) begin() {
	f.filling, f.fresh = newGraph(), map[Item]struct{}{}
	f.graph.replace(newGraph())
}`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestFeedBeginsAnew",
	},
	{
		Name: "unread-dependent", Rule: "an owner waits for dependents that nobody can read",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/controller.go",
			Before: `	return s.feed.allReadable(item.LogicalCluster())`,
			After:  `	return nil`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestUnreadableDependents",
	},
	{
		Name: "cluster-of-owner", Rule: "nothing owns a LogicalCluster",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/object.go",
			Before: `func unowned(i Item) bool { return i.prefix() == "/core.kcp.io/logicalclusters/" }`,
			After:  `func unowned(i Item) bool { return i.prefix() == "" }`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestScenarios",
	},
	{
		Name: "forgotten-garbage", Rule: "a collector that begins looks at all that has owners",
		Edits: []Edit{{
			File: "pkg/controllers/garbagecollector/graph.go",
			Before: `	g.todo.items = append(g.todo.items, by.todo.items...)
`,
			After: ``,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestEveryCrash",
	},
	{
		Name: "kinds-that-keep", Rule: "a definition that goes takes its objects and their dependents along",
		Edits: []Edit{{
			File: "pkg/controllers/garbagecollector/judge.go",
			Before: `		case !served && c.graph.isDeleted(ownerOf(place.Cluster, r.UID)):
			lookups[i].state = dangling // objects are deleted with their definition
			continue
`,
			After: ``,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestDeletedKinds",
	},
	{
		Name: "impatient-collector", Rule: "what was there before any collector waits",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/first.go",
			Before: `until.Add(c.config.InitialDelay).Truncate(time.Second)`,
			After:  `until.Truncate(time.Second)`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestBegin",
	},
}
