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
		Name: "expanded-reads", Rule: "defaults that a definition got later do not multiply what is stored",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/view.go",
			Before: "	return schema.Stored(u.Object)",
			After:  "	return nil",
		}},
		CaughtBy: "./pkg/customresource", Test: "TestCostsOfStoredObjects",
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
}
