package mutants

// definitions are mutants of custom resources.
var definitions = []Mutant{
	{
		Name: "cold-wildcards", Rule: "a wildcard finds no definition only if the definitions have been read",
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
		Name: "kept-names", Rule: "a definition that was not written has no names",
		Edits: []Edit{{
			File: "pkg/customresource/definitions/names.go",
			Before: `	r.of.mu.Lock()
	r.of.freeLocked(r)
	scope`,
			After: `	r.of.mu.Lock()
	scope`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestRefusedDefinitionsReleaseNames",
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
		Name: "unbounded-expressions", Rule: "regular expressions of CEL expressions are limited in upstream's compilers as well",
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
		Name: "cheap-programs", Rule: "a regular expression costs as much as its program",
		Edits: []Edit{{
			File:   "pkg/request/patterns/environment.go",
			Before: "	program := max(utf8",
			After:  "	program := min(utf8",
		}},
		CaughtBy: "./pkg/request/patterns", Test: "TestEvaluation",
	},
	{
		Name: "free-programs", Rule: "the regular expressions of all policies of a logical cluster have a limit together",
		Edits: []Edit{{
			File:   "pkg/admission/policy/limits.go",
			Before: "func (a *amount) memory() int { return a.bytes + int(a.instructions) }",
			After:  "func (a *amount) memory() int { return a.bytes }",
		}},
		CaughtBy: "./pkg/admission", Test: "TestPolicyPatterns",
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
		Name: "stored-columns", Rule: "printer columns of a definition from before the limits are not all served",
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
		Name: "long-bodies", Rule: "a body with few values is examined if its strings are long for the patterns of the schema",
		Edits: []Edit{{
			File:   "pkg/request/schemacosts/request.go",
			Before: "	if s.perByte*len(body) > maxMatches {",
			After:  "	if s.perByte > maxMatches {",
		}},
		CaughtBy: "./pkg/request/schemacosts", Test: "TestBody",
	},
	{
		Name: "long-strings", Rule: "an object with few values is examined if its strings are long for the patterns of the schema",
		Edits: []Edit{{
			File:   "pkg/customresource/costs.go",
			Before: "	if !isLarge && !known.costs.IsLong(object.Object) {",
			After:  "	if !isLarge {",
		}},
		CaughtBy: "./pkg/customresource", Test: "TestPatternCosts",
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
		Name: "many-errors", Rule: "few validation errors are reported, however many there are",
		Edits: []Edit{{
			File:   "pkg/request/invalid.go",
			Before: "		if i == MaxErrors {",
			After:  "		if i > MaxErrors*MaxErrors {",
		}},
		CaughtBy: "./pkg/request", Test: "TestLimitErrors",
	},
	{
		Name: "large-errors", Rule: "validation errors do not contain a list once for each of its items",
		Edits: []Edit{{
			File:   "pkg/admission/limits/metadata.go",
			Before: "	if len(controllers) < 2 {",
			After:  "	if len(controllers) < 2000 {",
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestMetadata",
	},
	{
		Name: "large-maps", Rule: "the fields that a write changes are few enough to be sorted by insertion",
		Edits: []Edit{{
			File:   "pkg/serving/patchlimits.go",
			Before: "		if err == nil && writes(info) && mayHaveLargeMaps(body, mediaType) {",
			After:  "		if err == nil && info.Verb == \"patch\" && mayHaveLargeMaps(body, mediaType) {",
		}},
		CaughtBy: "./pkg/serving", Test: "TestMapLimit",
	},
	{
		Name: "rule-errors", Rule: "few errors of validation rules are reported, however many there are",
		Edits: []Edit{{
			File:   "pkg/customresource/costs.go",
			Before: "	if len(errs) <= request.MaxErrors {",
			After:  "	if len(errs) <= request.MaxErrors*request.MaxErrors {",
		}},
		CaughtBy: "./pkg/customresource", Test: "TestCosts",
	},
	{
		Name: "policy-patches", Rule: "patches that policies compute have the limits of patches in requests",
		Edits: []Edit{{
			File:   "pkg/admission/policy/plugins.go",
			Before: "		return limitedPatches{compiler.CompileMutatingEvaluator(expression, patching, environment.StoredExpressions)}",
			After:  "		return compiler.CompileMutatingEvaluator(expression, patching, environment.StoredExpressions)",
		}},
		CaughtBy: "./pkg/admission/policy", Test: "TestPatchLimits",
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
		Name: "uncounted-reads", Rule: "each read of an object that cannot be read is counted",
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
			File: "pkg/serving/watchdog/watchdog.go",
			Before: `	if n > 0 {
		d.metrics.overdueTotal.Inc()`,
			After: `	if n > 1 {
		d.metrics.overdueTotal.Inc()`,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueReads",
	},
	{
		Name: "bad-wildcard", Rule: "an object that cannot be read with its definition does not fail requests for all logical clusters",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/unreadable.go",
			Before: `	return ok && cluster.Wildcard`,
			After:  `	return ok && cluster.Wildcard && cluster.Name != ""`,
		}},
		CaughtBy: "./pkg/customresource", Test: "TestWildcardsSkipUnreadableObjects",
	},
	{
		Name: "bad-definition", Rule: "a stored definition does not end the process",
		Edits: []Edit{{
			File:   "pkg/customresource/definitions/index.go",
			Before: `		if r := recover(); r != nil { // a panic would`,
			After:  `		if r := any(nil); r != nil { // a panic would`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestFaultyDefinition",
	},
	{
		Name: "uncounted-defaults", Rule: "what defaults add to an object is counted before they are set, those within defaults included",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/shape.go",
			Before: `			s.defaultBytes = add(bytesOf(value), s.expansion(value))`,
			After:  `			s.defaultBytes = bytesOf(value)`,
		}},
		CaughtBy: "./pkg/customresource/versions", Test: "TestExpansion",
	},
	{
		Name: "decoded-deletion", Rule: "deletion of bound objects needs only keys and metadata",
		Edits: []Edit{{
			File: "pkg/customresource/versions/modify.go",
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
