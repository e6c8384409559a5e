package mutants

// lives are mutants of how workspaces come, go and are reached.
var lives = []Mutant{
	{
		Name: "owner-too-late", Rule: "a logical cluster is Ready when its owner administers it",
		Edits: []Edit{{
			File: "pkg/controllers/logicalcluster/controller.go",
			Before: `	if err := r.bindOwner(ctx, lc); err != nil {
		return reconcile.Result{}, err
	}
`,
			After: `	defer func() { _ = r.bindOwner(ctx, lc) }()
`,
		}},
		CaughtBy: "./pkg/controllers/logicalcluster", Test: "TestACrashAnywhereIsCompleted",
	},
	{
		Name: "unlabelled-wait", Rule: "who is waited for finds what waits by its labels",
		Edits: []Edit{{
			File: "pkg/controllers/logicalcluster/writer.go",
			Before: `	return w.write(ctx, old, label(updated))
`,
			After: `	if len(updated.Status.Initializers) > 0 {
		return old, nil
	}
	return w.write(ctx, old, label(updated))
`,
		}},
		CaughtBy: "./pkg/controllers/logicalcluster", Test: "TestACrashAnywhereIsCompleted",
	},
	{
		Name: "repeated-writes", Rule: "a client is asked to repeat only what can be done twice",
		Edits: []Edit{{
			File: "pkg/frontproxy/forward.go",
			Before: `		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			retryAfter = retrySoon
		}`,
			After: `		retryAfter = retrySoon`,
		}},
		CaughtBy: "./pkg/frontproxy", Test: "TestRequestsAreSentOnce",
	},
}
