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
		Name: "large-patterns", Rule: "a regular expression with a large program is never compiled",
		Edits: []Edit{{
			File:   "pkg/request/patterns/patterns.go",
			Before: "if n := Size(pattern); n > MaxSize {",
			After:  "if n := len(pattern); n > MaxSize {",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestCheck",
	},
	{
		Name: "hidden-patterns", Rule: "constants that are concatenated count as one regular expression",
		Edits: []Edit{{
			File:   "pkg/request/patterns/expressions.go",
			Before: "if call.FunctionName() != operators.Add || len(call.Args()) != 2 {",
			After:  "if call.FunctionName() != operators.Add || len(call.Args()) != 3 {",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestExpressions",
	},
	{
		Name: "unlimited-definitions", Rule: "definitions have limits before they are validated",
		Edits: []Edit{{
			File:   "pkg/apis/groups.go",
			Before: "if errs := aboveLimits(crd, old); len(errs) > 0 {",
			After:  "if errs := aboveLimits(crd, old); len(errs) > 1<<20 {",
		}},
		CaughtBy: "./pkg/apis", Test: "TestLimits",
	},
	{
		Name: "frozen-definitions", Rule: "a definition from before the limits can be changed",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/definition.go",
			Before: "found > maxAlternatives && found > old.alternatives() {",
			After:  "found > maxAlternatives {",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestCheckSpec",
	},
	{
		Name: "default-of-null", Rule: "a null is replaced by its default, which counts",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/amounts.go",
			Before: "				sum.Defaults += n.items.filled",
			After:  "				sum.Defaults += len(value) - len(value)",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestBody",
	},
	{
		Name: "copied-to-defaults", Rule: "a JSON patch copies nothing to where it is multiplied",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/request.go",
			Before: "&& at != nil && at.repeats && s.at(from) != at {",
			After:  "&& at != nil && at.repeats && s.at(from) == at {",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestBody",
	},
	{
		Name: "unexamined-objects", Rule: "an object is examined in admission, after patches and before validation",
		Edits: []Edit{{
			File:   "pkg/customresource/core.go",
			Before: "	return checkCosts(ctx, a)",
			After:  "	return nil",
		}},
		CaughtBy: "./pkg/customresource", Test: "TestCosts",
	},
	{
		Name: "shifted-lists", Rule: "a JSON patch shifts the elements of lists a limited number of times, from either end",
		Edits: []Edit{{
			File:   "pkg/request/patchcosts/patchcosts.go",
			Before: "	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])",
			After:  "	_, err := strconv.ParseUint(path[strings.LastIndexByte(path, '/')+1:], 10, 64)",
		}},
		CaughtBy: "./pkg/request/patchcosts", Test: "TestCheck",
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
	{
		Name: "decoded-deletion", Rule: "deletion of bound objects needs only keys and metadata",
		Edits: []Edit{{
			File: "pkg/customresource/versions/empty.go",
			Before: `		key, err := keyOf(&all.Items[i])
`,
			After: `		key, err := keyOf(&all.Items[i])
		if err == nil {
			_, err = v.decode(ctx, &all.Items[i])
		}
`,
		}},
		CaughtBy: "./pkg/customresource", Test: "TestEmptyUnreadable",
	},
}
