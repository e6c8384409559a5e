package mutants

// rights are mutants of authentication and authorization.
var rights = []Mutant{
	{
		Name: "namesake", Rule: "a service account has its identity only in its own logical cluster",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `		if home, ok := HomeOf(cluster, u); !ok || home != cluster {`,
			After:  `		if _, ok := HomeOf(cluster, u); !ok {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestIn",
	},
	{
		Name: "two-clusters", Rule: "a service account with several logical clusters is invalid",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `	case len(claims) == 1 && request.ValidClusterName(`,
			After:  `	case request.ValidClusterName(`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestHomeOf",
	},
	{
		Name: "token-of-two-clusters", Rule: "a token with several logical clusters is invalid",
		Edits: []Edit{{
			File:   "pkg/authn/serviceaccount/tokens.go",
			Before: `	several := c.LegacyClusterName != "" && c.LegacyClusterName != name`,
			After:  `	several := false`,
		}},
		CaughtBy: "./pkg/authn/serviceaccount", Test: "TestForgedTokens",
	},
	{
		Name: "foreign-account", Rule: "a token review in a logical cluster must not accept service accounts of another",
		Edits: []Edit{{
			File:   "pkg/authn/tokens.go",
			Before: `			!identity.IsLocalServiceAccount(cluster.Name, response.User) {`,
			After:  `			cluster.Wildcard || len(response.User.GetExtra()[request.ExtraClusterName]) == 0 {`,
		}},
		CaughtBy: "./pkg/authn", Test: "TestReviewer",
	},
	{
		Name: "owner-without-cluster", Rule: "a service account without a logical cluster must not become an administrator",
		Edits: []Edit{{
			File:   "pkg/tenancy/names.go",
			Before: `	if !ok || home == parent && !identity.InScope(parent, u) {`,
			After:  `	if !ok && home == parent {`,
		}},
		CaughtBy: "./pkg/controllers/logicalcluster", Test: "TestOwnerBindingOf",
	},
	{
		Name: "warrant-from-outside", Rule: "an external service must not set attributes that servers use for decisions",
		Edits: []Edit{{
			File:   "pkg/authn/tokens.go",
			Before: `isReservedExtra(key) && key != request.ExtraScopes {`,
			After:  `key == request.ExtraClusterName {`,
		}},
		CaughtBy: "./pkg/authn", Test: "TestWebhook",
	},
	{
		Name: "cold-impersonation", Rule: "an impersonation must not be denied before the rules have been read",
		Edits: []Edit{{
			File:   "pkg/serving/chain.go",
			Before: `				return withRetries(next, c.Authorization.Authorizer, c.Serializer, filter)`,
			After:  `				return filter(next, c.Authorization.Authorizer, c.Serializer)`,
		}},
		CaughtBy: "./pkg/serving", Test: "TestUndecidedImpersonation",
	},
	{
		Name: "second-response", Rule: "a permitted impersonation has one response, even if rules had not been read before",
		Edits: []Edit{{
			File: "pkg/serving/chain.go",
			Before: `			upstreams.by = nil
`,
			After: ``,
		}},
		CaughtBy: "./pkg/serving", Test: "TestUndecidedImpersonation",
	},
	{
		Name: "endless-warrants", Rule: "the number of identities that warrants add is limited",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `		if f.warrants >= maxWarrants {`,
			After:  `		if f.warrants < 0 {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestWarrantsAreBounded",
	},
	{
		Name: "group-out-of-scope", Rule: "a privileged group is only effective if its member is in scope",
		Edits: []Edit{{
			File: "pkg/request/identity/identity.go",
			Before: `	return InScope(in.Name, u)
}`,
			After: `	return in.Name != "" || InScope(in.Name, u)
}`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestMemberOf",
	},
	{
		Name: "disclosed-existence", Rule: "responses to users without access must not disclose whether a logical cluster exists",
		Edits: []Edit{{
			File: "pkg/authz/content.go",
			Before: `			return authorizer.DecisionNoOpinion, NotPermittedReason, err
		}`,
			After: `			if lc, err := find(ctx, name); err == nil && lc == nil {
				return authorizer.DecisionNoOpinion, NotPermittedReason + ", and there is none", nil
			}
			return authorizer.DecisionNoOpinion, NotPermittedReason, err
		}`,
		}},
		CaughtBy: SuiteIsolation,
	},
	{
		Name: "concealment", Rule: "the response for a logical cluster that does not exist is the same as for one without access",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `			return authorizer.DecisionDeny, NotPermittedReason, nil`,
			After:  `			return authorizer.DecisionDeny, "the user lacks a group that this workspace requires", nil`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "admin-of-another", Rule: "an administrator of another logical cluster must have the groups that this one requires",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `	return identity.MemberOf(ctx, u, request.GroupAdmin, request.GroupWorkspaceBootstrapper) ||`,
			After:  `	return slices.Contains(u.GetGroups(), request.GroupAdmin) ||`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "permission-without-access", Rule: "permissions in a logical cluster require access to it",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `err != nil || !permitted {`,
			After:  `err != nil || !permitted && a.IsReadOnly() {`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "early-access-header", Rule: "a response only has the access header if the client is known to have access",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `		// Check permissions first:`,
			After: `		request.AccessAuthorized(ctx)
		// Check permissions first:`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "access-header-without-groups", Rule: "users without the required groups have no access",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `		decision, reason, err := next.Authorize(ctx, a)`,
			After: `		request.AccessAuthorized(ctx)
		decision, reason, err := next.Authorize(ctx, a)`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "unconcealed", Rule: "the front-proxy conceals each 403 without the access header",
		Edits: []Edit{{
			File:   "pkg/frontproxy/gate.go",
			Before: "\t\treturn v.refusal(r)\n\t}\n}",
			After:  "\t\treturn nil\n\t}\n}",
		}},
		CaughtBy: "./pkg/frontproxy", Test: "TestAccessHeader",
	},
	{
		Name: "denied-at-once", Rule: "a denial of access takes the same time whether something exists or not",
		Edits: []Edit{{
			File:   "pkg/frontproxy/gate.go",
			Before: "\t\treturn v.refusal(r)\n\t}\n}",
			After:  "\t\tv.accessCache.Remove(v.accessKey)\n\t\treturn v.unknown(r)\n\t}\n}",
		}},
		CaughtBy: SuiteIsolation,
	},
	{
		Name: "access-header-for-clients", Rule: "the access header must only be sent between servers",
		Edits: []Edit{{
			File:   "pkg/frontproxy/gate.go",
			Before: `	header.Del(request.AccessAuthorizedHeader)`,
			After:  ``,
		}},
		CaughtBy: "./pkg/frontproxy", Test: "TestAccessHeader",
	},
	{
		Name: "limit-outside", Rule: "limits are checked after access, so that the front-proxy need not check their responses",
		Edits: []Edit{{
			File: "pkg/shard/chain.go",
			Before: `			serving.NewFilter("entry", "sets the access header in responses", serving.WithAccessHeader),
		},
`,
			After: `		},
`,
		}, {
			File: "pkg/shard/chain.go",
			Before: `		serving.Chain{
			throttle,
`,
			After: `		serving.Chain{
			serving.NewFilter("entry", "sets the access header in responses", serving.WithAccessHeader),
			throttle,
`,
		}},
		CaughtBy: "./pkg/shard", Test: "TestChain",
	},
	{
		Name: "initializing", Rule: "only administrators have access to a logical cluster that is being initialized",
		Edits: []Edit{{
			File:   "pkg/tenancy/names.go",
			Before: ` && phase != corev1alpha1.LogicalClusterPhaseInitializing`,
			After:  ``,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "owner-elsewhere", Rule: "an initializer that acts as the owner of a workspace has the owner's permissions only there",
		Edits: []Edit{{
			File:   "pkg/virtual/initialization/virtualworkspaces.go",
			Before: `	return identity.Within(e.in.Name, info), nil, nil`,
			After:  `	return info, nil, nil`,
		}},
		CaughtBy: "./pkg/virtual/initialization", Test: "TestOwnerPermissionsAreLimitedToTheCluster",
	},
	{
		Name: "account-elsewhere", Rule: "scopes also restrict the name of a service account outside of its logical cluster",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `ok && scopesAllow(f.cluster, u) {`,
			After:  `ok {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestWithin",
	},
	{
		Name: "wildcard-gate", Rule: "requests for all logical clusters require system:masters",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `cluster.Wildcard || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup)`,
			After:  `cluster.Wildcard || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup, user.AllAuthenticated)`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "protected-status", Rule: "the status of system APIs must only be written by the system",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `a.GetVerb() == "patch" || `,
			After:  ``,
		}},
		CaughtBy: "./pkg/authz", Test: "TestProtectedStatus",
	},
	{
		Name: "impersonated-group", Rule: "users in a logical cluster must not impersonate a privileged group",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `		return IsPrivilegedGroup(name)`,
			After:  `		return name == user.SystemPrivilegedGroup`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestImpersonationGuard",
	},
	{
		Name: "impersonated-scope", Rule: "a scope can be impersonated only if the server adds another one that must match",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `(unresolved || clusterName(ctx) != "") && `,
			After:  `(unresolved || true) && `,
		}},
		CaughtBy: "./pkg/authz", Test: "TestScopesOfOtherEndpoints",
	},
	{
		Name: "claimed-origin", Rule: "all scopes of a user contain its origin",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: ` || !scopesAllow(logicalcluster.Name(name), u) {`,
			After:  ` {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestIn",
	},
	{
		Name: "revoked-binding", Rule: "a deleted role binding is not effective",
		Edits: []Edit{{
			File: "pkg/authz/rbac/index.go",
			Before: `	old.removed.Store(c.version)
	for _, subject`,
			After: `	if len(old.subjects) == 1 {
		old.removed.Store(c.version)
	}
	for _, subject`,
		}},
		CaughtBy: "./pkg/authz/rbac", Test: "TestChanges",
	},
	{
		Name: "stale-rights", Rule: "a decision observes the roles and bindings that were written before",
		Edits: []Edit{{
			File:   "pkg/authz/rbac/freshness.go",
			Before: `	writes.need[index] = max(writes.need[index], version)`,
			After:  `	writes.need[index] = max(writes.need[index], version-1)`,
		}},
		CaughtBy: "./pkg/authz/rbac", Test: "TestFreshness",
	},
	{
		Name: "escalation", Rule: "users must not grant permissions that they do not have",
		Edits: []Edit{{
			File:   "pkg/registry/rbac/guard.go",
			Before: `	return forbidden("clusterroles", role.Name, c.covers(ctx, role.Rules))`,
			After:  `	return forbidden("clusterroles", role.Name, c.covers(ctx, role.Rules[:min(1, len(role.Rules))]))`,
		}},
		CaughtBy: "./pkg/registry/rbac", Test: "TestGuard",
	},
}
