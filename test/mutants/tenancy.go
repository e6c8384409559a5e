package mutants

// tenancy are mutants of the separation of logical clusters in URLs and keys.
var tenancy = []Mutant{
	{
		Name: "cold-grantors", Rule: "a virtual workspace must only be reported as absent if the exports of other shards have been read",
		Edits: []Edit{{
			File:   "pkg/shard/access.go",
			Before: `		return "", authz.Unavailable(s.informers.APIExports.Read())`,
			After:  `		return "", nil`,
		}},
		CaughtBy: "./pkg/shard", Test: "TestUnknownGrantors",
	},
	{
		Name: "cold-paths", Rule: "a path must only be reported as absent if the shard has read its logical clusters",
		Edits: []Edit{{
			File:   "pkg/shard/local.go",
			Before: `		if l.hasSynced() && bindings() || inprocess.Own(r.Context()) {`,
			After:  `		if l.shard != "" && bindings() || inprocess.Own(r.Context()) {`,
		}},
		CaughtBy: "./pkg/shard", Test: "TestStarting",
	},
	{
		Name: "forgotten-cluster", Rule: "a list contains one logical cluster",
		Edits: []Edit{{
			File: "pkg/serving/scope.go",
			Before: `			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s Scopes) check(`,
			After: `			return
		}
		if info != nil && info.Verb == "list" && strings.Contains(r.URL.RawQuery, "labelSelector=") && info.APIGroup != "internal.shardplane.io" {
			r = r.WithContext(request.WithWildcard(r.Context()))
		}
		next.ServeHTTP(w, r)
	})
}

func (s Scopes) check(`,
		}},
		CaughtBy: SuiteIsolation,
	},
	{
		Name: "open-prefix", Rule: "the prefix of keys ends with the whole name of a logical cluster",
		Edits: []Edit{{
			File: "pkg/storage/keys.go",
			Before: `	case !k.sharded:
		return root + string(t.cluster) + "/"`,
			After: `	case !k.sharded:
		return root + string(t.cluster)`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestGoldenKeys",
	},
	{
		Name: "traversal", Rule: "names must not refer to keys of another logical cluster",
		Edits: []Edit{{
			File:   "pkg/storage/keys.go",
			Before: `		if segment == "." || segment == ".." {`,
			After:  `		if segment == "." {`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestGoldenKeys",
	},
	{
		Name: "forged-annotation", Rule: "kcp.io/cluster is set by the server, independent of updates",
		Edits: []Edit{{
			File:   "pkg/storage/requests.go",
			Before: `		return output, ttl, annotate(output, t)`,
			After:  `		return output, ttl, annotate(output.DeepCopyObject(), t)`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestClusterAnnotationIsReserved",
	},
	{
		Name: "foreign-token", Rule: "a continue token is only valid for the list that returned it",
		Edits: []Edit{{
			File:   "pkg/storage/requests.go",
			Before: `sha256.Sum256([]byte(scope + "\x00" + token))`,
			After:  `sha256.Sum256([]byte(scope[:min(4, len(scope))] + "\x00" + token))`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestTokensOfAnotherRequest",
	},
	{
		Name: "dry-run-annotation", Rule: "the response to a dry run contains kcp.io/cluster, like the response to a write",
		Edits: []Edit{{
			File:   "pkg/storage/keys.go",
			Before: `	case "", "status", "finalize":`,
			After:  `	case "status", "finalize":`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestDryRunAdmission",
	},
	{
		Name: "wildcard-verbs", Rule: "requests for all logical clusters must be lists or watches",
		Edits: []Edit{{
			File:   "pkg/request/url.go",
			Before: `	return resource && (verb == "list" || verb == "watch")`,
			After:  `	return resource && (verb == "list" || verb == "watch" || verb == "deletecollection")`,
		}},
		CaughtBy: "./pkg/serving", Test: "TestScopes",
	},
	{
		Name: "cache-wildcard-verbs", Rule: "requests for all shards of the cache server must be lists or watches",
		Edits: []Edit{{
			File:   "pkg/request/url.go",
			Before: `	return listOrWatch(verb, resource) || !resource && (verb == "get" || verb == "head")`,
			After:  `	return listOrWatch(verb, resource) || verb == "delete" || !resource && (verb == "get" || verb == "head")`,
		}},
		CaughtBy: "./pkg/cacheserver", Test: "TestWildcardVerbs",
	},
	{
		Name: "selector-of-another", Rule: "a context for another logical cluster contains only the shard of the request's scope",
		Edits: []Edit{{
			File:   "pkg/request/scope.go",
			Before: `	return WithScope(ctx, Scope{Shard: scopeFrom(ctx).Shard, Cluster: c})`,
			After: `	s := ScopeFrom(ctx)
	s.Cluster = c
	return WithScope(ctx, s)`,
		}},
		CaughtBy: "./pkg/request", Test: "TestAccessAuthorized",
	},
	{
		Name: "early-path-resolution", Rule: "a path is only resolved after authorization",
		Edits: []Edit{{
			File: "pkg/serving/scope.go",
			Before: `		if err != nil {
			if _, later := apierrors.SuggestsClientDelay(err); !later {`,
			After: `		if err == nil && !scope.UnresolvedPath.Empty() {
			err = scope.Refusal
		}
		if err != nil {
			if _, later := apierrors.SuggestsClientDelay(err); !later {`,
		}},
		CaughtBy: "./pkg/serving", Test: "TestScopes",
	},
	{
		Name: "late-type-check", Rule: "if a user must not use a type, the request is rejected before webhooks and schemas are applied",
		Edits: []Edit{{
			File: "pkg/admission/workspacetype/plugin.go",
			Before: `	types, err := c.authorizedTypes(ctx, a, ws)
	if err != nil || len(types) == 0 {
		return err
	}`,
			After: `	types, err := c.authorizedTypes(ctx, a, ws)
	if err != nil || len(types) == 0 {
		return nil
	}`,
		}},
		CaughtBy: "./pkg/admission/workspacetype", Test: "TestPlugin",
	},
	{
		Name: "foreign-writer", Rule: "a shard must not send writes to another shard, even if they are rejected",
		Edits: []Edit{{
			File: "pkg/controllers/workspace/reconcile.go",
			Before: `	if clusters.isRemote() {
		return r.await(`,
			After: `	_ = clusters.create(ctx, "elsewhere", &corev1alpha1.LogicalCluster{})
	if clusters.isRemote() {
		return r.await(`,
		}},
		CaughtBy: "./test/integration/operations", Test: "TestShardsDoNotWriteToOthers",
	},
}
