package mutants

// tenancy are mutants of what keeps logical clusters apart in URLs and keys.
var tenancy = []Mutant{
	{
		Name: "forgotten-cluster", Rule: "a list shows one logical cluster",
		Edits: []Edit{{
			File: "pkg/serving/clusterrules.go",
			Before: `			return
		}
		next.ServeHTTP(w, r)
	})
}

func checkRules(`,
			After: `			return
		}
		if info != nil && info.Verb == "list" && strings.Contains(r.URL.RawQuery, "labelSelector=") {
			r = r.WithContext(request.WithWildcard(ctx))
		}
		next.ServeHTTP(w, r)
	})
}

func checkRules(`,
		}},
		CaughtBy: SuiteIsolation,
	},
	{
		Name: "open-prefix", Rule: "the keys of a logical cluster end at its name",
		Edits: []Edit{{
			File: "pkg/storage/keys.go",
			Before: `	case !k.sharded:
		return k.root + string(t.cluster) + "/"`,
			After: `	case !k.sharded:
		return k.root + string(t.cluster)`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestGoldenKeys",
	},
	{
		Name: "traversal", Rule: "no name leads out of a logical cluster's keys",
		Edits: []Edit{{
			File:   "pkg/storage/keys.go",
			Before: `		if segment == "." || segment == ".." {`,
			After:  `		if segment == "." {`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestGoldenKeys",
	},
	{
		Name: "forged-annotation", Rule: "kcp.io/cluster is what the server says, whatever an update says",
		Edits: []Edit{{
			File:   "pkg/storage/tenant.go",
			Before: `		return output, ttl, annotate(output, t)`,
			After:  `		return output, ttl, annotate(output.DeepCopyObject(), t)`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestAnnotationIsTheServers",
	},
	{
		Name: "foreign-token", Rule: "a continue token is good for the list that it was issued for only",
		Edits: []Edit{{
			File:   "pkg/storage/tokens.go",
			Before: `	sum.Write([]byte(scope))`,
			After:  `	sum.Write([]byte(scope[:min(4, len(scope))]))`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestTokensOfAnotherRequest",
	},
	{
		Name: "dry-run-annotation", Rule: "the answer to a dry run has kcp.io/cluster, as that to a write has",
		Edits: []Edit{{
			File:   "pkg/storage/dryrun.go",
			Before: `	case "", "status", "finalize":`,
			After:  `	case "status", "finalize":`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestDryRunAdmission",
	},
	{
		Name: "wildcard-verbs", Rule: "across all logical clusters one can list and watch only",
		Edits: []Edit{{
			File:   "pkg/serving/clusterrules.go",
			Before: `	case "list", "watch":`,
			After:  `	case "list", "watch", "deletecollection":`,
		}},
		CaughtBy: "./pkg/serving", Test: "TestClusterFilters",
	},
	{
		Name: "cache-wildcard-verbs", Rule: "across all shards of the cache server one can list and watch only",
		Edits: []Edit{{
			File:   "pkg/cacheserver/filter.go",
			Before: `		return info.Verb == "list" || info.Verb == "watch"`,
			After:  `		return info.Verb == "list" || info.Verb == "watch" || info.Verb == "delete"`,
		}},
		CaughtBy: "./pkg/cacheserver", Test: "TestWildcardVerbs",
	},
}
