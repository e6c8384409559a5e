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
	{
		Name: "kept-patterns", Rule: "the compiled patterns that a process keeps have a limit in bytes",
		Edits: []Edit{{
			File:   "pkg/customresource/patterns/patterns.go",
			Before: `	if b.bytes > b.limit {`,
			After:  `	if b.bytes > b.limit && b.limit == 0 {`,
		}},
		CaughtBy: "./pkg/customresource/patterns", Test: "TestTrim",
	},
	{
		Name: "bad-list", Rule: "an object that cannot be decoded does not fail the list that fills a watch cache",
		Edits: []Edit{{
			File:   "pkg/storage/progress.go",
			Before: `	if err := listTolerant(ctx, f.belowCache, key, opts, list); err != nil {`,
			After:  `	if err := f.belowCache.GetList(ctx, key, opts, list); err != nil {`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestUnreadableObjects",
	},
	{
		Name: "bad-wildcard", Rule: "an object that cannot be read with its definition does not fail requests for all logical clusters",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/bad.go",
			Before: `	return ok && cluster.Wildcard`,
			After:  `	return ok && cluster.Wildcard && cluster.Name != ""`,
		}},
		CaughtBy: "./pkg/customresource", Test: "TestWildcardsSkipUnreadableObjects",
	},
	{
		Name: "bad-definition", Rule: "a stored definition does not end the process",
		Edits: []Edit{{
			File:   "pkg/customresource/definitions/index.go",
			Before: `		if r := recover(); r != nil { // it would`,
			After:  `		if r := any(nil); r != nil { // it would`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestFaultyDefinition",
	},
	{
		Name: "uncounted-defaults", Rule: "what defaults add to an object is counted before they are set, those within defaults included",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/shape.go",
			Before: `			s.fills = add(bytesOf(value), s.expansion(value))`,
			After:  `			s.fills = bytesOf(value)`,
		}},
		CaughtBy: "./pkg/customresource/versions", Test: "TestExpansion",
	},
}
