package mutants

// rights are mutants of who one is and what one may do.
var rights = []Mutant{
	{
		Name: "namesake", Rule: "a service account is itself in its own logical cluster only",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `		if home, ok := HomeOf(cluster, u); !ok || home != cluster {`,
			After:  `		if _, ok := HomeOf(cluster, u); !ok {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestIn",
	},
	{
		Name: "two-homes", Rule: "a service account that claims several logical clusters is of none",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `	case len(claims) == 1 && request.ValidClusterName(`,
			After:  `	case request.ValidClusterName(`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestHomeOf",
	},
	{
		Name: "token-of-two-homes", Rule: "a token that claims several logical clusters is of none",
		Edits: []Edit{{
			File:   "pkg/authn/serviceaccount/claims.go",
			Before: `	several := c.LegacyClusterName != "" && c.LegacyClusterName != name`,
			After:  `	several := false`,
		}},
		CaughtBy: "./pkg/authn/serviceaccount", Test: "TestForgedTokens",
	},
	{
		Name: "foreign-account", Rule: "a token review in a logical cluster knows the service accounts of no other",
		Edits: []Edit{{
			File:   "pkg/authn/tokens.go",
			Before: `			!identity.IsLocalServiceAccount(cluster.Name, response.User) {`,
			After:  `			cluster.Wildcard || len(response.User.GetExtra()[request.ExtraClusterName]) == 0 {`,
		}},
		CaughtBy: "./pkg/authn", Test: "TestReviewer",
	},
	{
		Name: "owner-of-nowhere", Rule: "a service account without a home becomes nobody's administrator",
		Edits: []Edit{{
			File:   "pkg/tenancy/owner.go",
			Before: `	if !ok || home == parent && !identity.InScope(parent, u) {`,
			After:  `	if !ok && home == parent {`,
		}},
		CaughtBy: "./pkg/controllers/logicalcluster", Test: "TestOwnerBindingOf",
	},
	{
		Name: "warrant-from-outside", Rule: "a service outside gives nobody attributes by which servers decide",
		Edits: []Edit{{
			File:   "pkg/authn/tokens.go",
			Before: `isReservedExtra(key) && key != request.ExtraScopes {`,
			After:  `key == request.ExtraClusterName {`,
		}},
		CaughtBy: "./pkg/authn", Test: "TestWebhook",
	},
	{
		Name: "cold-impersonation", Rule: "an impersonation is not denied before it is known who may impersonate",
		Edits: []Edit{{
			File:   "pkg/serving/chain.go",
			Before: `				return withRetries(next, c.Authorization.Authorizer, c.Serializer, filter)`,
			After:  `				return filter(next, c.Authorization.Authorizer, c.Serializer)`,
		}},
		CaughtBy: "./pkg/serving", Test: "TestUndecidedImpersonation",
	},
	{
		Name: "second-response", Rule: "a permitted impersonation has one response, whatever was unknown before",
		Edits: []Edit{{
			File: "pkg/serving/authorization.go",
			Before: `			upstreams.by = nil
`,
			After: ``,
		}},
		CaughtBy: "./pkg/serving", Test: "TestUndecidedImpersonation",
	},
	{
		Name: "endless-warrants", Rule: "warrants add a bounded number of identities",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `		if f.warrants >= maxWarrants {`,
			After:  `		if f.warrants < 0 {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestWarrantsAreBounded",
	},
	{
		Name: "group-out-of-scope", Rule: "a privileged group counts where its member is in scope only",
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
		Name: "told-existing", Rule: "who may not enter is not told whether a logical cluster exists",
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
		Name: "concealment", Rule: "a logical cluster that does not exist is answered as one that may not be entered",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `			return authorizer.DecisionDeny, NotPermittedReason, nil`,
			After:  `			return authorizer.DecisionDeny, "the user lacks a group that this workspace requires", nil`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "admin-of-another", Rule: "who administers another logical cluster is bound by the groups that this one requires",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `	return identity.MemberOf(ctx, u, request.GroupAdmin, request.GroupWorkspaceBootstrapper) ||`,
			After:  `	return slices.Contains(u.GetGroups(), request.GroupAdmin) ||`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "entering", Rule: "rights in a logical cluster count for those who may enter it only",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `err != nil || !permitted {`,
			After:  `err != nil || !permitted && a.IsReadOnly() {`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "early-mark", Rule: "an answer is marked where the sender may enter, and not before that is known",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `		// Check permissions first:`,
			After: `		request.AccessAuthorized(ctx)
		// Check permissions first:`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "mark-without-groups", Rule: "who lacks the required groups has not entered",
		Edits: []Edit{{
			File:   "pkg/authz/content.go",
			Before: `		decision, reason, err := next.Authorize(ctx, a)`,
			After: `		request.AccessAuthorized(ctx)
		decision, reason, err := next.Authorize(ctx, a)`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "unconcealed", Rule: "the front-proxy conceals each 403 without the mark",
		Edits: []Edit{{
			File: "pkg/frontproxy/gate.go",
			Before: `	default:
		return true
`,
			After: `	default:
		return false
`,
		}},
		CaughtBy: "./pkg/frontproxy", Test: "TestAccessHeader",
	},
	{
		Name: "denied-at-once", Rule: "who may not enter is told so after the same time, whether something exists or not",
		Edits: []Edit{{
			File: "pkg/frontproxy/gate.go",
			Before: `	v.accessCache.denied(v.accessKey)
	return v.refusal(r)`,
			After: `	v.accessCache.denied(v.accessKey)
	return v.unknown(r)`,
		}},
		CaughtBy: SuiteIsolation,
	},
	{
		Name: "mark-for-clients", Rule: "the mark is between the servers",
		Edits: []Edit{{
			File:   "pkg/frontproxy/gate.go",
			Before: `	header.Del(request.AccessAuthorizedHeader)`,
			After:  ``,
		}},
		CaughtBy: "./pkg/frontproxy", Test: "TestAccessHeader",
	},
	{
		Name: "limit-outside", Rule: "limits stand behind the decision who may enter, so that the front-proxy need not ask about their answers",
		Edits: []Edit{{
			File: "pkg/shard/chain.go",
			Before: `			serving.NewFilter("entry", "sets the access header in responses", serving.WithEntry),
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
			serving.NewFilter("entry", "sets the access header in responses", serving.WithEntry),
			throttle,
`,
		}},
		CaughtBy: "./pkg/shard", Test: "TestChain",
	},
	{
		Name: "initializing", Rule: "nobody but administrators enters a logical cluster that is being initialized",
		Edits: []Edit{{
			File:   "pkg/tenancy/phaselabels.go",
			Before: ` && phase != corev1alpha1.LogicalClusterPhaseInitializing`,
			After:  ``,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "owner-elsewhere", Rule: "an initializer that acts as the owner of a workspace has the owner's permissions in that one only",
		Edits: []Edit{{
			File:   "pkg/virtual/initialization/virtualworkspaces.go",
			Before: `	return identity.Within(e.in.Name, info), nil, nil`,
			After:  `	return info, nil, nil`,
		}},
		CaughtBy: "./pkg/virtual/initialization", Test: "TestActsWithin",
	},
	{
		Name: "account-elsewhere", Rule: "scopes also restrict the name that a service account has outside of its logical cluster",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: `ok && scopesAllow(f.cluster, u) {`,
			After:  `ok {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestWithin",
	},
	{
		Name: "wildcard-gate", Rule: "requests for all logical clusters need system:masters",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `cluster.Wildcard || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup)`,
			After:  `cluster.Wildcard || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup, user.AllAuthenticated)`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestChain",
	},
	{
		Name: "protected-status", Rule: "the status of the system's kinds is written by the system only",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `a.GetVerb() == "patch" || `,
			After:  ``,
		}},
		CaughtBy: "./pkg/authz", Test: "TestProtectedStatus",
	},
	{
		Name: "impersonated-group", Rule: "nobody in a logical cluster impersonates a privileged group",
		Edits: []Edit{{
			File:   "pkg/authz/impersonation.go",
			Before: `		return IsPrivilegedGroup(name)`,
			After:  `		return name == user.SystemPrivilegedGroup`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestImpersonationGuard",
	},
	{
		Name: "impersonated-scope", Rule: "a scope can be impersonated only where the server adds another one that must fit",
		Edits: []Edit{{
			File:   "pkg/authz/impersonation.go",
			Before: `(nowhere || clusterName(ctx) != "") && `,
			After:  `(nowhere || true) && `,
		}},
		CaughtBy: "./pkg/authz", Test: "TestScopesOfOtherEndpoints",
	},
	{
		Name: "claimed-origin", Rule: "the origin of a user is in all of its scopes",
		Edits: []Edit{{
			File:   "pkg/request/identity/identity.go",
			Before: ` || !scopesAllow(logicalcluster.Name(name), u) {`,
			After:  ` {`,
		}},
		CaughtBy: "./pkg/request/identity", Test: "TestIn",
	},
	{
		Name: "revoked-binding", Rule: "a role binding that is deleted gives nothing any more",
		Edits: []Edit{{
			File: "pkg/authz/rbac/index.go",
			Before: `	old.gone.Store(c.version)
	for _, subject`,
			After: `	if len(old.subjects) == 1 {
		old.gone.Store(c.version)
	}
	for _, subject`,
		}},
		CaughtBy: "./pkg/authz/rbac", Test: "TestChanges",
	},
	{
		Name: "stale-rights", Rule: "a decision sees the roles and bindings that were written before",
		Edits: []Edit{{
			File:   "pkg/authz/rbac/freshness.go",
			Before: `	writes.need[index] = max(writes.need[index], version)`,
			After:  `	writes.need[index] = max(writes.need[index], version-1)`,
		}},
		CaughtBy: "./pkg/authz/rbac", Test: "TestFreshness",
	},
	{
		Name: "escalation", Rule: "nobody gives away rights that they do not have",
		Edits: []Edit{{
			File:   "pkg/registry/rbac/guard.go",
			Before: `	return forbidden("clusterroles", role.Name, g.covers(ctx, role.Rules))`,
			After:  `	return forbidden("clusterroles", role.Name, g.covers(ctx, role.Rules[:min(1, len(role.Rules))]))`,
		}},
		CaughtBy: "./pkg/registry/rbac", Test: "TestGuard",
	},
}
