package mutants

// lifecycle are mutants of the lifecycle of workspaces.
var lifecycle = []Mutant{
	{
		Name: "owner-too-late", Rule: "a logical cluster is only Ready if its owner is an administrator",
		Edits: []Edit{{
			File: "pkg/controllers/logicalcluster/controller.go",
			Before: `	if err := r.bindOwner(ctx, lc); err != nil {
		return reconcile.Result{}, err
	}
`,
			After: `	defer func() { _ = r.bindOwner(ctx, lc) }()
`,
		}},
		CaughtBy: "./pkg/controllers/logicalcluster", Test: "TestRestartAfterEachWrite",
	},
	{
		Name: "unlabelled-wait", Rule: "controllers find the logical clusters that wait for them by labels",
		Edits: []Edit{{
			File: "pkg/controllers/logicalcluster/controller.go",
			Before: `	if _, err = r.write(ctx, lc, label(r.defaults.Note(advance(next, r.externalURL)))); err != nil {
`,
			After: `	labelled := label(r.defaults.Note(advance(next, r.externalURL)))
	if len(labelled.Status.Initializers) > 0 {
		labelled.Labels = lc.Labels
	}
	if _, err = r.write(ctx, lc, labelled); err != nil {
`,
		}},
		CaughtBy: "./pkg/controllers/logicalcluster", Test: "TestRestartAfterEachWrite",
	},
	{
		Name: "repeated-writes", Rule: "a response only requests a retry if the request can be repeated",
		Edits: []Edit{{
			File: "pkg/frontproxy/forward.go",
			Before: `	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		retryAfter = retrySoon
	}`,
			After: `	retryAfter = retrySoon`,
		}},
		CaughtBy: "./pkg/frontproxy", Test: "TestRequestsAreSentOnce",
	},
}
