package mutants

// definitions are mutants of custom resources.
var definitions = []Mutant{
	{
		Name: "cold-wildcards", Rule: "a wildcard request must only find no definition if the definitions have been read",
		Edits: []Edit{{
			File: "pkg/customresource/definitions/index.go",
			Before: `	if !o.waitSynced(ctx) {
		return nil, errNotSynced
	}
	o.mu.RLock()
	var found`,
			After: `	o.waitSynced(ctx)
	o.mu.RLock()
	var found`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestUnreadDefinitions",
	},
	{
		Name: "kept-names", Rule: "a definition that was not written must not reserve names",
		Edits: []Edit{{
			File: "pkg/customresource/definitions/names.go",
			Before: `	r.of.mu.Lock()
	remove(r.of.reserved, r.scope, r)
	scope`,
			After: `	r.of.mu.Lock()
	scope`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestRefusedDefinitionsReleaseNames",
	},
	{
		Name: "large-patterns", Rule: "a regular expression with a large program must not be compiled",
		Edits: []Edit{{
			File:   "pkg/request/patterns/patterns.go",
			Before: "	n := Size(pattern)",
			After:  "	n := len(pattern)",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestCheck",
	},
	{
		Name: "hidden-patterns", Rule: "constants that are concatenated count as one regular expression",
		Edits: []Edit{{
			File:   "pkg/request/patterns/patterns.go",
			Before: "if call.FunctionName() != operators.Add || len(call.Args()) != 2 {",
			After:  "if call.FunctionName() != operators.Add || len(call.Args()) != 3 {",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestExpressions",
	},
	{
		Name: "unbounded-expressions", Rule: "regular expressions of CEL expressions are also limited in the compilers of Kubernetes",
		Edits: []Edit{{
			File:   "pkg/request/patterns/environment.go",
			Before: "	*base = *bounded",
			After:  "	*bounded = *base",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestCompilers",
	},
	{
		Name: "computed-patterns", Rule: "a regular expression that an expression computes is limited before it is compiled",
		Edits: []Edit{{
			File:   "pkg/request/patterns/environment.go",
			Before: "		if n := cachedSize(pattern); n > MaxSize {",
			After:  "		if n := cachedSize(pattern); n > saturated {",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestEvaluation",
	},
	{
		Name: "cheap-programs", Rule: "the cost of a regular expression is the size of its program",
		Edits: []Edit{{
			File:   "pkg/request/patterns/environment.go",
			Before: "	program := max(utf8",
			After:  "	program := min(utf8",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestEvaluation",
	},
	{
		Name: "free-programs", Rule: "the regular expressions of all policies in a logical cluster have a common limit",
		Edits: []Edit{{
			File:   "pkg/admission/policy/writes.go",
			Before: "func (a *amount) memory() int { return a.bytes + int(a.instructions) }",
			After:  "func (a *amount) memory() int { return a.bytes }",
		}},
		CaughtBy: "./pkg/admission", Test: "TestPolicyPatterns",
	},
	{
		Name: "unlimited-definitions", Rule: "definitions are limited before they are validated",
		Edits: []Edit{{
			File:   "pkg/apis/names.go",
			Before: "if errs := aboveLimits(crd, old); len(errs) > 0 {",
			After:  "if errs := aboveLimits(crd, old); len(errs) > 1<<20 {",
		}},
		CaughtBy: "./pkg/apis", Test: "TestLimits",
	},
	{
		Name: "frozen-definitions", Rule: "a definition that was created before the limits can be changed",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/definition.go",
			Before: "found > maxAlternatives && found > old.alternatives() {",
			After:  "found > maxAlternatives {",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestCheckSpec",
	},
	{
		Name: "stored-columns", Rule: "if a definition was created before the limits, its printer columns are limited",
		Edits: []Edit{{
			File:   "pkg/customresource/definitions/schema.go",
			Before: "	schemacosts.LimitColumns(crd.Spec.Versions)",
			After:  "	schemacosts.LimitColumns(nil)",
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestStoredColumns",
	},
	{
		Name: "default-of-null", Rule: "a null is replaced by its default, which counts",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/schema.go",
			Before: "sum.fill(n.items, n.items.filled)",
			After:  "sum.fill(n.items, 0)",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestBody",
	},
	{
		Name: "costs-of-nested-defaults", Rule: "a default is validated together with the defaults in it",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/schema.go",
			Before: "min(a.Matches+n.filling.Matches, saturated)",
			After:  "min(a.Matches, saturated)",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestCheckSpec",
	},
	{
		Name: "values-in-protobuf", Rule: "a value in protobuf is counted although its decoding fails later",
		Edits: []Edit{{
			File:   "pkg/request/values/values.go",
			Before: "				*n++\n				visit(rest[:size])",
			After:  "				visit(rest[:size])",
		}},
		CaughtBy: "./pkg/request/values", Test: "TestCheck",
	},
	{
		Name: "quantities-of-policies", Rule: "a policy must not add a quantity that is expensive to parse",
		Edits: []Edit{{
			File:   "pkg/admission/policy/patches.go",
			Before: "cmp.Or(patchcosts.CheckShifts(p.shifts), p.quantities.Err())",
			After:  "cmp.Or(patchcosts.CheckShifts(p.shifts), nil)",
		}},
		CaughtBy: "./pkg/admission/policy", Test: "TestPatchLimits",
	},
	{
		Name: "copied-to-defaults", Rule: "a JSON patch must not copy values to fields where they are multiplied",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/request.go",
			Before: "&& at != nil && at.repeats && s.at(from) != at {",
			After:  "&& at != nil && at.repeats && s.at(from) == at {",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestBody",
	},
	{
		Name: "long-bodies", Rule: "a body with few values is checked if its strings are too long for the patterns of the schema",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/request.go",
			Before: "	if s.perByte*len(body) > maxMatches {",
			After:  "	if s.perByte > maxMatches {",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestBody",
	},
	{
		Name: "long-strings", Rule: "an object with few values is checked if its strings are too long for the patterns of the schema",
		Edits: []Edit{{
			File:   "pkg/customresource/costs.go",
			Before: "	if !isLarge && !known.costs.IsLong(object.Object) {",
			After:  "	if !isLarge {",
		}},
		CaughtBy: "./pkg/customresource", Test: "TestPatternCosts",
	},
	{
		Name: "unexamined-objects", Rule: "an object is checked in admission, after patches and before validation",
		Edits: []Edit{{
			File:   "pkg/customresource/core.go",
			Before: "	return checkCosts(ctx, a)",
			After:  "	return nil",
		}},
		CaughtBy: "./pkg/customresource", Test: "TestCosts",
	},
	{
		Name: "shifted-lists", Rule: "a JSON patch must only shift elements of lists a limited number of times, from either end",
		Edits: []Edit{{
			File:   "pkg/request/patchcosts/patchcosts.go",
			Before: "	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])",
			After:  "	_, err := strconv.ParseUint(path[strings.LastIndexByte(path, '/')+1:], 10, 64)",
		}},
		CaughtBy: "./pkg/request/patchcosts", Test: "TestCheck",
	},
	{
		Name: "many-errors", Rule: "the number of reported validation errors is limited",
		Edits: []Edit{{
			File:   "pkg/request/invalid.go",
			Before: "		if i == MaxErrors || ",
			After:  "		if i > MaxErrors*MaxErrors || ",
		}},
		CaughtBy: "./pkg/request", Test: "TestLimitErrors",
	},
	{
		Name: "large-errors", Rule: "validation errors must not contain a list once for each of its items",
		Edits: []Edit{{
			File:   "pkg/admission/limits/objects.go",
			Before: "	if len(controllers) < 2 {",
			After:  "	if len(controllers) < 2000 {",
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestMetadata",
	},
	{
		Name: "large-maps", Rule: "the number of fields that a write changes is limited, because insertion sort is used",
		Edits: []Edit{{
			File:   "pkg/serving/rules.go",
			Before: "		if err == nil && writes(info) && mayHaveLargeMaps(body, mediaType) {",
			After:  "		if err == nil && info.Verb == \"patch\" && mayHaveLargeMaps(body, mediaType) {",
		}},
		CaughtBy: "./pkg/serving", Test: "TestMapLimit",
	},
	{
		Name: "all-errors", Rule: "the number of reported errors of all kinds together is limited",
		Edits: []Edit{{
			File:   "pkg/customresource/costs.go",
			Before: "	if len(errs) <= request.MaxErrors-otherErrors {",
			After:  "	if !many {",
		}},
		CaughtBy: "./pkg/customresource", Test: "TestCosts",
	},
	{
		Name: "policy-patches", Rule: "patches by policies have the limits of patches in requests",
		Edits: []Edit{{
			File:   "pkg/admission/policy/policy.go",
			Before: "		return limitedPatches{compiler.CompileMutatingEvaluator(expression, patching, environment.StoredExpressions)}",
			After:  "		return compiler.CompileMutatingEvaluator(expression, patching, environment.StoredExpressions)",
		}},
		CaughtBy: "./pkg/admission/policy", Test: "TestPatchLimits",
	},
	{
		Name: "kept-patterns", Rule: "the bytes of the compiled patterns in a process are limited",
		Edits: []Edit{{
			File:   "pkg/customresource/patterns/patterns.go",
			Before: `	if b.bytes > b.limit {`,
			After:  `	if b.bytes > b.limit && b.limit == 0 {`,
		}},
		CaughtBy: "./pkg/customresource/patterns", Test: "TestTrim",
	},
	{
		Name: "bad-list", Rule: "an object that cannot be decoded must not fail the list that fills a watch cache",
		Edits: []Edit{{
			File:   "pkg/storage/watchcache.go",
			Before: `	if err := listTolerant(ctx, f.belowCache, key, opts, list); err != nil {`,
			After:  `	if err := f.belowCache.GetList(ctx, key, opts, list); err != nil {`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestUnreadableObjects",
	},
	{
		Name: "uncounted-reads", Rule: "each read of an object that cannot be decoded is counted",
		Edits: []Edit{{
			File:   "pkg/storage/unreadable/unreadable.go",
			Before: "	r.reads.WithLabelValues(o.Reason).Inc()",
			After:  "	r.reads.WithLabelValues(o.Reason)",
		}},
		CaughtBy: "./pkg/storage/unreadable", Test: "TestRecord",
	},
	{
		Name: "uncounted-overdue", Rule: "each overdue request is counted",
		Edits: []Edit{{
			File:   "pkg/serving/watchdog/watchdog.go",
			Before: `			d.overdueTotal.Inc()`,
			After:  `			d.overdueTotal.Add(0)`,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueReads",
	},
	{
		Name: "bad-wildcard", Rule: "an object that cannot be decoded with its definition must not fail requests for all logical clusters",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/decode.go",
			Before: `	return ok && cluster.Wildcard`,
			After:  `	return ok && cluster.Wildcard && cluster.Name != ""`,
		}},
		CaughtBy: "./pkg/customresource", Test: "TestWildcardsSkipUnreadableObjects",
	},
	{
		Name: "bad-definition", Rule: "a stored definition must not end the process",
		Edits: []Edit{{
			File:   "pkg/customresource/definitions/index.go",
			Before: `		if r := recover(); r != nil { // a panic would`,
			After:  `		if r := any(nil); r != nil { // a panic would`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestFaultyDefinition",
	},
	{
		Name: "uncounted-defaults", Rule: "values of defaults are counted before they are set, including defaults within defaults",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/shape.go",
			Before: `			s.defaultBytes = add(bytesOf(value), s.expansion(value))`,
			After:  `			s.defaultBytes = bytesOf(value)`,
		}},
		CaughtBy: "./pkg/customresource/versions", Test: "TestExpansion",
	},
	{
		Name: "decoded-deletion", Rule: "deletion of bound objects requires only keys and metadata",
		Edits: []Edit{{
			File: "pkg/customresource/versions/registries.go",
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
