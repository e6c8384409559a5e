package mutants

// writes are mutants of what a request has to pass before something is stored: who sends it,
// when its turn comes, who judges it, and how much there may be.
var writes = []Mutant{
	{
		Name: "uncounted-write", Rule: "what a quota lets pass is counted before it is stored",
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
		Name: "hasty-place", Rule: "a write that is admitted keeps its place in a quota until it is stored",
		Edits: []Edit{{
			File:   "pkg/controllers/resourcequota/decide.go",
			Before: `				used = max(count, used-gone)`,
			After:  `				used = count`,
		}},
		CaughtBy: "./pkg/controllers/resourcequota", Test: "TestObserveKeepsAdmittedWrites",
	},
	{
		Name: "growing-updates", Rule: "a shard that is nearly full takes no write of a tenant that makes it fuller",
		Edits: []Edit{{
			File:   "pkg/admission/limits/homes.go",
			Before: `	if !isLimited(cluster) || !w.create && !grows(w) {`,
			After:  `	if !isLimited(cluster) || !w.create {`,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestLimits",
	},
	{
		Name: "endless-replicas", Rule: "a logical cluster has a bounded number of objects that other shards keep",
		Edits: []Edit{{
			File:   "pkg/admission/limits/limits.go",
			Before: `w.over(used.Objects, p.c.MaxReplicated, `,
			After:  `w.over(used.Objects, 0, `,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestLimits",
	},
	{
		Name: "unjudged", Rule: "the provider of a bound API judges what is written of it",
		Edits: []Edit{{
			File:   "pkg/admission/percluster/judge.go",
			Before: `provider != "" {`,
			After:  `provider == in {`,
		}},
		CaughtBy: "./pkg/admission/percluster", Test: "TestJudge",
	},
	{
		Name: "unknown-judge", Rule: "webhooks and policies that are not known yet are not taken for none",
		Edits: []Edit{{
			File:   "pkg/admission/percluster/judge.go",
			Before: `	for _, hooks := range j.hooks {`,
			After:  `	for _, hooks := range j.hooks[:min(1, len(j.hooks))] {`,
		}},
		CaughtBy: "./pkg/admission/percluster", Test: "TestJudges",
	},
	{
		Name: "early-admission", Rule: "admission waits for what must be known after a start",
		Edits: []Edit{{
			File:   "pkg/admission/percluster/judge.go",
			Before: `	for _, informer := range r {`,
			After:  `	for _, informer := range r[:0] {`,
		}},
		CaughtBy: "./pkg/admission/percluster", Test: "TestReady",
	},
	{
		Name: "uncomparable-kinds", Rule: "an apply that changes nothing is not stored",
		Edits: []Edit{{
			File:   "pkg/registry/resource/strategy.go",
			Before: `	obj.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())`,
			After:  `	_ = old.GetObjectKind()`,
		}},
		CaughtBy: "./pkg/registry", Test: "TestUnchanged",
	},
	{
		Name: "second-organization", Rule: "nobody asks for a client certificate with a group by which servers decide",
		Edits: []Edit{{
			File:   "pkg/admission/reserved/fields.go",
			Before: `range content.Subject.Organization {`,
			After:  `range content.Subject.Organization[:min(1, len(content.Subject.Organization))] {`,
		}},
		CaughtBy: "./pkg/admission/reserved", Test: "TestSigningRequests",
	},
	{
		Name: "saved-up", Rule: "a logical cluster that was quiet has no more turns than others afterwards",
		Edits: []Edit{{
			File:   "pkg/serving/fairness/queue.go",
			Before: `	if f.inUse == 0 && !f.wants() {`,
			After:  `	if f.inUse > 0 && !f.wants() {`,
		}},
		CaughtBy: "./pkg/serving/fairness", Test: "TestNoCredit",
	},
	{
		Name: "free-homes", Rule: "a home workspace and all below it have a limit of objects together",
		Edits: []Edit{{
			File:   "pkg/admission/limits/homes.go",
			Before: `	byObjects, byBytes := w.over(used.Objects, most.Objects,`,
			After:  `	byObjects, byBytes := w.over(used.Objects, 0,`,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestOwners",
	},
	{
		Name: "filling-for-all", Rule: "an etcd that is filling up refuses those who use most, and nobody else",
		Edits: []Edit{{
			File:   "pkg/admission/limits/homes.go",
			Before: `owner != "" && p.c.Owners.UsesMost(owner) {`,
			After:  `owner != "" && !p.c.Owners.UsesMost(owner) {`,
		}},
		CaughtBy: "./pkg/admission/limits", Test: "TestOwners",
	},
	{
		Name: "left-seat", Rule: "a write that computes after its end keeps its seat until it has ended",
		Edits: []Edit{{
			File:   "pkg/serving/watchdog/watchdog.go",
			Before: `		if ctx.Err() != nil || time`,
			After:  `		if time`,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueWrites",
	},
	{
		Name: "unthrottled-user", Rule: "a user whose requests compute after their end sends no more of them",
		Edits: []Edit{{
			File:   "pkg/serving/watchdog/watchdog.go",
			Before: `	case d.flows[identity.FlowFrom(ctx)] > 0:`,
			After:  `	case d.flows[identity.FlowFrom(ctx)] > 1:`,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueReads",
	},
	{
		Name: "unthrottled-cluster", Rule: "a logical cluster in which several requests compute after their end sends no more of them",
		Edits: []Edit{{
			File:   "pkg/serving/watchdog/watchdog.go",
			Before: `	case d.clusters[cluster.Name] >= perCluster && `,
			After:  `	case d.clusters[cluster.Name] > perCluster && `,
		}},
		CaughtBy: "./pkg/serving/watchdog", Test: "TestOverdueReads",
	},
	{
		Name: "unseated", Rule: "requests are watched behind all that gives them seats",
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
		Name: "own-word", Rule: "nobody tells other servers through the front-proxy who he is, or what it knows",
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
