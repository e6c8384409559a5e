package mutants

// listwatch are mutants of the hub and of lists.
var listwatch = []Mutant{
	{
		Name: "unawaited-watch-cache", Rule: "storage can be closed while the watch cache processes events",
		Edits: []Edit{{
			File: "pkg/storage/hub/tap.go",
			Before: `		close(t.result)
		<-t.stopped
`,
			After: `		close(t.result)
`,
		}},
		CaughtBy: "./pkg/storage/hub", Test: "TestCloseWaitsForTheWatchCache",
	},
	{
		Name: "lost-event", Rule: "a watch contains every event",
		Edits: []Edit{{
			File:   "pkg/storage/hub/dispatch.go",
			Before: `	if len(h.scopes) == 0 && len(h.claimed.of) == 0 {`,
			After:  `	if len(h.scopes) == 0 && len(h.claimed.of) == 0 || h.cfg.Resource.Resource == "configmaps" && e.version%25 == 0 {`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "skipped-page", Rule: "the pages of a list contain the whole list",
		Edits: []Edit{{
			File: "pkg/storage/requests.go",
			Before: `	accessor.SetContinue(sealToken(c.scope, accessor.GetContinue()))
	return nil`,
			After: `	accessor.SetContinue(sealToken(c.scope, accessor.GetContinue()))
	if pred.Continue != "" && strings.Count(pred.Continue, "a")%3 == 0 {
		return meta.SetList(list, nil)
	}
	return nil`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "adjacent-range", Rule: "a sharded watch contains only events of its ranges",
		Edits: []Edit{{
			File:   "pkg/storage/hub/index.go",
			Before: `		if hash <= n.Last {`,
			After:  `		if hash <= n.Last || n.Last < ^uint64(0) && hash>>60 == (n.Last+1)>>60 {`,
		}},
		CaughtBy: "./pkg/storage/hub", Test: "TestIndex",
	},
	{
		Name: "missed-claim-change", Rule: "a watch that resumes observes changes of its permission claims",
		Edits: []Edit{{
			File:   "pkg/storage/hub/watch.go",
			Before: `	if w.claims != nil && w.begins != 0 {`,
			After:  `	if w.claims != nil && w.begins == 1 {`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestClaimsModel",
	},
	{
		Name: "claimed-past", Rule: "a permission claim must not show states of an object from before it was accepted",
		Edits: []Edit{{
			File:   "pkg/storage/hub/claimupdate.go",
			Before: `s.from < end && since`,
			After:  `since`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestClaimsModel",
	},
	{
		Name: "stale-list", Rule: "a list without a resourceVersion contains every write that was acknowledged before",
		Edits: []Edit{{
			File:   "pkg/storage/hub/hub.go",
			Before: `		if h.synced && version <= h.version {`,
			After:  `		if h.synced && version <= h.version+1 {`,
		}},
		CaughtBy: "./pkg/storage/hub", Test: "TestListsWaitForTheHub",
	},
	{
		Name: "eager-initial-version", Rule: "a merged version among initial events must not contain a shard that sends more of them",
		Edits: []Edit{{
			File:   "pkg/merge/watch.go",
			Before: "	if _, ok := m.version[f.shard.Number]; ok {\n		m.version = version\n	}",
			After:  "	m.version = version",
		}},
		CaughtBy: "./pkg/merge", Test: "TestInitialVersions",
	},
	{
		Name: "crossed-positions", Rule: "a merged version contains the correct version of each shard",
		Edits: []Edit{{
			File:   "pkg/merge/version.go",
			Before: "	with[shard] = revision\n",
			After:  "	with[slices.Min(append(slices.Collect(maps.Keys(v)), shard))] = revision\n",
		}},
		CaughtBy: "./pkg/merge", Test: "TestWatchesResumeFromAnyEvent",
	},
	{
		Name: "tables-by-kind", Rule: "merged responses contain Tables only if the client requests them",
		Edits: []Edit{{
			File:   "pkg/merge/table.go",
			Before: "if !w.request.Tables || !isTable(raw) {\n\t\treturn w.frame",
			After:  `if kind, end, _ := find(raw, "kind"); string(raw[kind:end]) != "\"Table\"" { return w.frame`,
		}},
		CaughtBy: "./pkg/merge", Test: "TestKindsNamedTable",
	},
	{
		Name: "seated-watch", Rule: "a watch of a virtual workspace releases its seat before it waits for changes",
		Edits: []Edit{{
			File:   "pkg/virtual/board/reader.go",
			Before: `	utilflowcontrol.WatchInitialized(ctx)`,
			After:  `	_ = utilflowcontrol.WatchInitialized`,
		}},
		CaughtBy: "./pkg/virtual/board", Test: "TestWatchesReleaseTheirSeats",
	},
}
