package mutants

// writes are mutants of the checks before an object is stored: authentication, fairness, admission and quotas.
var writes = []Mutant{
	{
		Name: "uncounted-write", Rule: "a write that a quota admits is counted before it is stored",
		Edits: []Edit{{
			File:   "pkg/admission/quota/quota.go",
			Before: `quotas.UpdateStatus(ctx, quota, metav1.UpdateOptions{})`,
			After:  `quotas.Get(ctx, quota.Name, metav1.GetOptions{})`,
		}},
		CaughtBy: "./test/admission", Test: "TestQuota",
	},
	{
		Name: "free-namespaces", Rule: "a quota of a whole logical cluster limits all its namespaces",
		Edits: []Edit{{
			File:   "pkg/admission/quota/quota.go",
			Before: `	return p.evaluate(a, cluster, "")`,
			After: `	if a.GetNamespace() != "" {
		return nil
	}
	return p.evaluate(a, cluster, "")`,
		}},
		CaughtBy: "./test/admission", Test: "TestQuota",
	},
	{
		Name: "early-quota-release", Rule: "an admitted write is counted in the quota until it is stored",
		Edits: []Edit{{
			File:   "pkg/controllers/resourcequota/controller.go",
			Before: `				used = max(count, used-deleted)`,
			After:  `				used = count`,
		}},
		CaughtBy: "./pkg/controllers/resourcequota", Test: "TestObserveKeepsAdmittedWrites",
	},
	{
		Name: "growing-updates", Rule: "a shard that is nearly full rejects writes of tenants that increase its size",
		Edits: []Edit{{
			File:   "pkg/admission/limits/limits.go",
			Before: `	if !isLimited(cluster) || !w.create && !grows(w) && (`,
			After:  `	if !isLimited(cluster) || !w.create && (`,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestLimits",
	},
	{
		Name: "endless-replicas", Rule: "the number of objects of a logical cluster that are replicated to other shards is limited",
		Edits: []Edit{{
			File:   "pkg/admission/limits/limits.go",
			Before: `	most := usage.Usage{Objects: p.c.MaxReplicated, `,
			After:  `	most := usage.Usage{`,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestLimits",
	},
	{
		Name: "ignored-provider-policy", Rule: "webhooks and policies of the provider apply to writes of its bound API",
		Edits: []Edit{{
			File:   "pkg/admission/percluster/percluster.go",
			Before: `provider != "" {`,
			After:  `provider == in {`,
		}},
		CaughtBy: "./pkg/admission/percluster", Test: "TestClusters",
	},
	{
		Name: "unread-policies", Rule: "if webhooks and policies have not been read yet, writes must not be admitted",
		Edits: []Edit{{
			File:   "pkg/admission/percluster/percluster.go",
			Before: `	for _, hooks := range p.hooks {`,
			After:  `	for _, hooks := range p.hooks[:min(1, len(p.hooks))] {`,
		}},
		CaughtBy: "./pkg/admission/percluster", Test: "TestPrerequisites",
	},
	{
		Name: "early-admission", Rule: "admission waits until required data has been read after a start",
		Edits: []Edit{{
			File:   "pkg/admission/percluster/percluster.go",
			Before: `	for _, informer := range r {`,
			After:  `	for _, informer := range r[:0] {`,
		}},
		CaughtBy: "./pkg/admission/percluster", Test: "TestReady",
	},
	{
		Name: "uncomparable-kinds", Rule: "an apply without a change is not stored",
		Edits: []Edit{{
			File:   "pkg/registry/resource/storage.go",
			Before: `	obj.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())`,
			After:  `	_ = old.GetObjectKind()`,
		}},
		CaughtBy: "./pkg/registry", Test: "TestUnchanged",
	},
	{
		Name: "second-organization", Rule: "client certificates must not be requested with a group that servers use for decisions",
		Edits: []Edit{{
			File:   "pkg/admission/reserved/fields.go",
			Before: `range content.Subject.Organization {`,
			After:  `range content.Subject.Organization[:min(1, len(content.Subject.Organization))] {`,
		}},
		CaughtBy: "./pkg/admission/reserved", Test: "TestSigningRequests",
	},
	{
		Name: "saved-up", Rule: "an idle logical cluster must not get more turns than others afterwards",
		Edits: []Edit{{
			File:   "pkg/serving/fairness/queue.go",
			Before: `	if f.inUse == 0 && !f.wants() {`,
			After:  `	if f.inUse > 0 && !f.wants() {`,
		}},
		CaughtBy: "./pkg/serving/fairness", Test: "TestIdleFlowsGetNoCredit",
	},
	{
		Name: "free-homes", Rule: "a home workspace and all below it have a common limit of objects",
		Edits: []Edit{{
			File:   "pkg/admission/limits/limits.go",
			Before: `	homes := usage.Usage{Objects: most.Objects, `,
			After:  `	homes := usage.Usage{`,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestOwners",
	},
	{
		Name: "filling-for-all", Rule: "an etcd that is nearly full rejects only writes of the largest tenants",
		Edits: []Edit{{
			File:   "pkg/admission/limits/limits.go",
			Before: `owner != "" && p.c.Owners.UsesMost(owner) {`,
			After:  `owner != "" && !p.c.Owners.UsesMost(owner) {`,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestOwners",
	},
	{
		Name: "released-seat", Rule: "a write that computes after its end keeps its seat until it has ended",
		Edits: []Edit{{
			File:   "pkg/serving/watchdog/watchdog.go",
			Before: `return ctx.Err() != nil || time`,
			After:  `return time`,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueWrites",
	},
	{
		Name: "reset-overdue", Rule: "the client of an overdue write gets a status, and not a reset stream",
		Edits: []Edit{{
			File: "pkg/serving/watchdog/watchdog.go",
			Before: `	if l.late() {
		l.code = code`,
			After: `	if !l.late() {
		l.code = code`,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueResponses",
	},
	{
		Name: "reset-at-deadline", Rule: "a handler can complete its response when the context of the request ends",
		Edits: []Edit{{
			File:   "pkg/serving/filters.go",
			Before: `context.WithDeadline(r.Context(), deadline.Add(-margin))`,
			After:  `context.WithDeadline(r.Context(), deadline.Add(margin))`,
		}},
		CaughtBy: "./pkg/serving", Test: "TestResponsesAtTheDeadline",
	},
	{
		Name: "unthrottled-user", Rule: "a user is throttled if its requests compute after their end",
		Edits: []Edit{{
			File:   "pkg/serving/watchdog/watchdog.go",
			Before: `	case ofUser > 0:`,
			After:  `	case ofUser > 1:`,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueReads",
	},
	{
		Name: "unthrottled-cluster", Rule: "a logical cluster is throttled if several of its requests compute after their end",
		Edits: []Edit{{
			File:   "pkg/serving/watchdog/watchdog.go",
			Before: `	case ofCluster >= perCluster && `,
			After:  `	case ofCluster > perCluster && `,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueReads",
	},
	{
		Name: "unseated", Rule: "requests are measured after all filters that assign seats",
		Edits: []Edit{{
			File:   "pkg/shard/chain.go",
			Before: "			serving.InFlight(c, s.metrics),\n			watched,\n",
			After:  "			serving.InFlight(c, s.metrics),\n",
		}, {
			File:   "pkg/shard/chain.go",
			Before: "			serving.LongRunningStop(s.serving, c),\n",
			After:  "			serving.LongRunningStop(s.serving, c),\n			watched,\n",
		}},
		CaughtBy: "./pkg/shard", Test: "TestSeats",
	},
	{
		Name: "client-headers", Rule: "the front-proxy must remove identities and other internal headers from requests of clients",
		Edits: []Edit{{
			File: "pkg/frontproxy/call.go",
			Before: `		own.drop(r.Header)
		if`,
			After: `		if r.TLS == nil {
			own.drop(r.Header)
		}
		if`,
		}},
		CaughtBy: "./pkg/frontproxy", Test: "TestMappedServers",
	},
}
