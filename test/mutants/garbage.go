package mutants

// garbage are mutants of garbage collection.
var garbage = []Mutant{
	{
		Name: "unconfirmed-absence", Rule: "an owner is absent only if a quorum read does not find it",
		Edits: []Edit{{
			File: "pkg/controllers/garbagecollector/decide.go",
			Before: `	if err == nil && l.owner.uid != r.UID { // it is considered absent only after a quorum read
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
			File:   "pkg/controllers/garbagecollector/graph.go",
			Before: `	o := owner{cluster: cluster}`,
			After:  `	o := owner{}`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestScenarios",
	},
	{
		Name: "unsettled-orphans", Rule: "an owner that orphans its dependents is only deleted if all dependents have been read",
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
		Name: "forgetful-graph", Rule: "while objects are listed again, no owner must appear without dependents",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/feed.go",
			Before: `func (f *feed) begin() { f.filling, f.fresh = newGraph(), map[Item]struct{}{} }`,
			After: `func (f *feed) begin() {
	f.filling, f.fresh = newGraph(), map[Item]struct{}{}
	f.graph.replace(newGraph())
}`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestFeedRestarts",
	},
	{
		Name: "unread-dependent", Rule: "an owner waits for dependents that cannot be decoded",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/controller.go",
			Before: `	return s.feed.allReadable(item.LogicalCluster())`,
			After:  `	return nil`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestUnreadableDependents",
	},
	{
		Name: "cluster-of-owner", Rule: "a LogicalCluster must not have owners",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/graph.go",
			Before: `func unowned(i Item) bool { return i.prefix() == "/core.kcp.io/logicalclusters/" }`,
			After:  `func unowned(i Item) bool { return i.prefix() == "" }`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestScenarios",
	},
	{
		Name: "forgotten-garbage", Rule: "a collector checks all objects with owners when it starts",
		Edits: []Edit{{
			File: "pkg/controllers/garbagecollector/graph.go",
			Before: `	g.todo.items = append(g.todo.items, by.todo.items...)
`,
			After: ``,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestEveryCrash",
	},
	{
		Name: "kinds-that-keep", Rule: "if a definition is deleted, its objects and their dependents are deleted",
		Edits: []Edit{{
			File: "pkg/controllers/garbagecollector/decide.go",
			Before: `	case !served && c.graph.isDeleted(ownerOf(key.Cluster, r.UID)):
		l.state = dangling // objects are deleted with their definition
		return nil
`,
			After: ``,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestDeletedKinds",
	},
	{
		Name: "early-collection", Rule: "objects that existed before the first collector are only deleted after a delay",
		Edits: []Edit{{
			File:   "pkg/controllers/garbagecollector/controller.go",
			Before: `until.Add(c.config.InitialDelay).Truncate(time.Second)`,
			After:  `until.Truncate(time.Second)`,
		}},
		CaughtBy: "./pkg/controllers/garbagecollector", Test: "TestBegin",
	},
}
