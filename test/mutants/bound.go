package mutants

// bound are mutants of bound APIs, their identities and the policies of their providers.
var bound = []Mutant{
	{
		Name: "empty-identity", Rule: "authorization and storage use the same identity",
		Edits: []Edit{{
			File:   "pkg/customresource/serve.go",
			Before: `	if qualified && (!request.ValidIdentity(hash) || !s.mayQualify(r.Context(), cluster, info.Verb)) {`,
			After:  `	if qualified && hash != "" && (!request.ValidIdentity(hash) || !s.mayQualify(r.Context(), cluster, info.Verb)) {`,
		}, {
			File:   "pkg/customresource/serve.go",
			Before: `		qualified && !cluster.Wildcard && !s.replicas && definition.Only == nil {`,
			After:  `		qualified && hash != "" && !cluster.Wildcard && !s.replicas && definition.Only == nil {`,
		}},
		CaughtBy: "./pkg/customresource", Test: "TestQualifiedResources",
	},
	{
		Name: "unknown-policy", Rule: "nothing is permitted if the policy of a provider has not been read",
		Edits: []Edit{{
			File: "pkg/bindings/exports.go",
			Before: `		if err := x.waitSynced(ctx); err != nil {
			return authorizer.DecisionNoOpinion, notPermitted, err
		}
`,
			After: ``,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestPolicyBeforeSync",
	},
	{
		Name: "missed-policy", Rule: "if a binding was unknown during authorization, the client must retry",
		Edits: []Edit{{
			File:   "pkg/bindings/source.go",
			Before: `; has || err != nil {`,
			After:  `; has && err != nil {`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestPolicyOfUnknownBinding",
	},
	{
		Name: "successor", Rule: "a binding refers to the export for which it was permitted",
		Edits: []Edit{{
			File:   "pkg/controllers/apibinding/reconciler.go",
			Before: `	if err != nil || binding.Labels[apis.ExportLabel] != apis.ExportLabelValue(name, ref.Name) {`,
			After:  `	if err != nil || binding.Labels[apis.ExportLabel] == "" {`,
		}},
		CaughtBy: "./pkg/controllers/apibinding", Test: "TestProvider",
	},
	{
		Name: "other-group", Rule: "a permission claim restricts requests by the stored resource, independent of the group in the request",
		Edits: []Edit{{
			File:   "pkg/bindings/reach.go",
			Before: `			return identified{storedAs(resource), c.IdentityHash}, true`,
			After:  `			return identified{resource, c.IdentityHash}, true`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestReach",
	},
	{
		Name: "other-storage", Rule: "a request that is restricted to objects of one resource must not access the storage of another",
		Edits: []Edit{{
			File:   "pkg/request/scope.go",
			Before: `	case s.restriction != nil && s.restriction.Resource() != resource:`,
			After:  `	case s.restriction != nil && s.restriction.Resource() == (schema.GroupResource{}):`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestUnrestricted",
	},
	{
		Name: "unrestricted", Rule: "a request through the virtual workspace of an export must have an identity or a restriction before it accesses storage",
		Edits: []Edit{{
			File:   "pkg/request/scope.go",
			Before: `	case s.through.Mount != nil && !s.through.Unrestricted && `,
			After:  `	case s.through.Mount != nil && s.through.Unrestricted && `,
		}},
		CaughtBy: "./pkg/storage", Test: "TestUnrestricted",
	},
	{
		Name: "incompatible-schema", Rule: "a binding keeps a schema that can decode its objects",
		Edits: []Edit{{
			File: "pkg/controllers/apibinding/apply.go",
			Before: `		if errors.Is(err, apis.ErrInvalidSchema) {
			p.problem`,
			After: `		if errors.Is(err, apis.ErrInvalidSchema) && p.export == nil {
			p.problem`,
		}},
		CaughtBy: "./pkg/controllers/apibinding", Test: "TestIncompatibleSchema",
	},
	{
		Name: "simultaneous-schemas", Rule: "if two schemas are incompatible, simultaneous bindings must bind only one",
		Edits: []Edit{{
			File:   "pkg/controllers/apibinding/locks.go",
			Before: `p != nil && p.schema != resources[i].Schema.UID {`,
			After:  `p != nil && p.schema == "" {`,
		}},
		CaughtBy: "./pkg/controllers/apibinding", Test: "TestReplacementsAreSerialized",
	},
	{
		Name: "incompatible-consumer", Rule: "all objects in a wildcard response can be decoded with its schema",
		Edits: []Edit{{
			File:   "pkg/bindings/conflicts.go",
			Before: `	uids, stored := x.storedIn(w)`,
			After:  `	uids, stored := x.storedIn(identified{})`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestCheckReplacement",
	},
	{
		Name: "newer-schema", Rule: "a wildcard request uses a schema that has all stored versions",
		Edits: []Edit{{
			File:   "pkg/bindings/source.go",
			Before: `return s.Version(version) == nil })`,
			After:  `return s == nil || version == "" })`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestWildcardsReadAllVersions",
	},
	{
		Name: "new-claim-set", Rule: "a claim set that is created after a claim was accepted must expire earlier lists",
		Edits: []Edit{{
			File:   "pkg/bindings/history.go",
			Before: `	if !unchanged(before, after) {`,
			After:  `	if before != nil && !unchanged(before, after) {`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestSetsHaveAHistory",
	},
	{
		Name: "ended-claim", Rule: "a claim set must not be used for versions before the end of a binding",
		Edits: []Edit{{
			File:   "pkg/bindings/history.go",
			Before: `		h.latest, h.unknown = max(h.latest, revision), false`,
			After: `		if h.unknown = false; after != nil {
			h.latest = max(h.latest, revision)
		}`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestSetsHaveAHistory",
	},
	{
		Name: "late-claim", Rule: "a list contains the objects of all claims that were accepted before its version",
		Edits: []Edit{{
			File: "pkg/storage/hub/claims.go",
			Before: `	if err := in.Set.CatchUp(ctx, version); err != nil {
		return nil, err
	}
`,
			After: ``,
		}},
		CaughtBy: "./pkg/storage/hub", Test: "TestListsHaveAcceptedClaims",
	},
	{
		Name: "recreated-export", Rule: "while an export of root is created again, its resources must keep an identity",
		Edits: []Edit{{
			File:   "pkg/shard/local.go",
			Before: `	if last, ok := r.last.Load(name); ok {`,
			After:  `	if last, ok := r.last.Load(name); ok && err == nil {`,
		}},
		CaughtBy: "./pkg/shard", Test: "TestRootIdentities",
	},
	{
		Name: "unknown-kind", Rule: "a parameter kind must only be reported as missing by a server with complete data",
		Edits: []Edit{{
			File:   "pkg/admission/policy/params.go",
			Before: `	return apierrors.IsNotFound(err) || errors.Is(err, errNoKind)`,
			After:  `	return err != nil || errors.Is(err, errNoKind)`,
		}, {
			File: "pkg/admission/policy/params.go",
			Before: `	apierrors "k8s.io/apimachinery/pkg/api/errors"
`,
			After: ``,
		}},
		CaughtBy: "./pkg/admission/policy", Test: "TestUnknownKinds",
	},
	{
		Name: "final-denial", Rule: "a write that requires parameters that have not been read yet can be retried",
		Edits: []Edit{{
			File:   "pkg/admission/policy/policy.go",
			Before: `	if err != nil && unknown() {`,
			After:  `	if err == nil && unknown() {`,
		}},
		CaughtBy: "./pkg/admission/policy", Test: "TestUnknownParametersAreNotFinal",
	},
	{
		Name: "bare-export", Rule: "an export without an identity must not access objects through its virtual workspace",
		Edits: []Edit{{
			File: "pkg/bindings/reach.go",
			Before: `	if identity == "" {
		return nil, nil //nolint:nilnil // not bound
	}`,
			After: ``,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestReach",
	},
	{
		Name: "any-verb", Rule: "a claim permits only its verbs",
		Edits: []Edit{{
			File:   "pkg/bindings/record.go",
			Before: `	return slices.Contains(verbs, verb) || slices.Contains(verbs, everyVerb)`,
			After:  `	return verb != "" || slices.Contains(verbs, everyVerb)`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestReach",
	},
	{
		Name: "collected-claim", Rule: "a user must not delete a claimed object by garbage collection if it must not delete it directly",
		Edits: []Edit{{
			File:   "pkg/admission/claims/plugin.go",
			Before: `	case !equality.Semantic.DeepEqual(now.GetOwnerReferences(), before.GetOwnerReferences()):`,
			After:  `	case !equality.Semantic.DeepEqual(before.GetOwnerReferences(), before.GetOwnerReferences()):`,
		}},
		CaughtBy: "./pkg/admission/claims", Test: "TestDeletionByUpdate",
	},
	{
		Name: "collected-by-consumer", Rule: "if a provider does not permit a deletion, an owner reference must not cause it",
		Edits: []Edit{{
			File:   "pkg/admission/claims/plugin.go",
			Before: `	case field == ownerReferences && through.Mount`,
			After:  `	case field == finalizers && through.Mount`,
		}},
		CaughtBy: "./pkg/admission/claims", Test: "TestDeletionByUpdate",
	},
	{
		Name: "export-by-time", Rule: "a denial has the same steps whether an export exists or not",
		Edits: []Edit{{
			File:   "pkg/shard/admission.go",
			Before: `	decoy.cluster, decoy.name = tenancy.AdminCluster, hex.EncodeToString(hash[:])`,
			After:  `	decoy.cluster, decoy.name = logicalcluster.Name(hex.EncodeToString(hash[:])), tenancy.AdminCluster.String()`,
		}},
		CaughtBy: "./pkg/shard", Test: "TestDenialsDoNotDiscloseExports",
	},
	{
		Name: "export-by-error", Rule: "an error must not disclose more about an export than a denial",
		Edits: []Edit{{
			File:   "pkg/admission/apikinds/plugin.go",
			Before: `identity.WithoutWarrant(u), provider, export); err != nil {`,
			After:  `identity.WithoutWarrant(u), provider, export); err != nil && found {`,
		}},
		CaughtBy: "./pkg/admission/apikinds", Test: "TestDenialsDoNotDisclose",
	},
	{
		Name: "one-identity", Rule: "objects of different identities are separate",
		Edits: []Edit{{
			File:   "pkg/storage/keys.go",
			Before: `		root += identityPrefix + t.identity + "/"`,
			After:  `		root += identityPrefix + t.identity[:1] + "/"`,
		}},
		CaughtBy: "./pkg/storage", Test: "TestGoldenKeys",
	},
	{
		Name: "unclaimed-list", Rule: "a list through a virtual workspace contains the objects that the claim selects",
		Edits: []Edit{{
			File:   "pkg/storage/hub/claims.go",
			Before: `			proceed = !m.Selection.Matches(it.obj) || yield(it)`,
			After:  `			proceed = !m.Selection.Held() || yield(it)`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "unclaimed-event", Rule: "a watch through a virtual workspace contains events of objects that the claim selects",
		Edits: []Edit{{
			File:   "pkg/storage/hub/dispatch.go",
			Before: `	held, wasHeld := c.selection.MatchesObject(l.name, l.is), c.selection.MatchesObject(l.name, l.was)`,
			After:  `	held, wasHeld := c.selection.MatchesObject(l.name, l.is) || l.is != nil, c.selection.MatchesObject(l.name, l.was) || l.was != nil`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "unbound-kinds", Rule: "a logical cluster has only the system APIs that it binds",
		Edits: []Edit{{
			File:   "pkg/customresource/definitions/source.go",
			Before: `	if d != nil && s.bound != nil && s.bound(cluster, resource) {`,
			After:  `	if d != nil && s.bound != nil && s.bound(cluster, resource) && cluster == "" {`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestSystemOnlyIfBound",
	},
	{
		Name: "free-names", Rule: "names of system APIs are reserved if the APIs are not bound",
		Edits: []Edit{{
			File:   "pkg/customresource/definitions/names.go",
			Before: `n.sources.beforeIndex(ctx, request.Cluster{Name: scope.cluster}, n.sources.system.definitions, except)`,
			After:  `n.sources.beforeIndex(ctx, request.Cluster{Name: scope.cluster}, n.sources.system.list(request.Cluster{Name: scope.cluster}), except)`,
		}},
		CaughtBy: "./pkg/customresource/definitions", Test: "TestSystemOnlyIfBound",
	},
	{
		Name: "early-switch", Rule: "everything that a logical cluster uses remains until it has the bindings",
		Edits: []Edit{{
			File:   "pkg/controllers/logicalcluster/defaults/defaults.go",
			Before: `		adopting = adopting || !bound`,
			After:  `		adopting = adopting && !bound`,
		}},
		CaughtBy: "./pkg/controllers/logicalcluster/defaults", Test: "TestAdopt",
	},
	{
		Name: "rootless", Rule: "root keeps the objects that servers require",
		Edits: []Edit{{
			File:   "pkg/admission/reserved/fields.go",
			Before: `!deletes(a) || cluster.Name != core.RootCluster {`,
			After:  `!deletes(a) || cluster.Name == core.RootCluster {`,
		}},
		CaughtBy: "./pkg/admission/reserved", Test: "TestBindingsOfRoot",
	},
	{
		Name: "disclosing-virtual-workspace", Rule: "a virtual workspace must not disclose whether a logical cluster exists that it does not contain",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `		if opens == authorizer.DecisionAllow && virtualWorkspaces.Shows(ctx) {`,
			After:  `		if opens == authorizer.DecisionAllow {`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestWithVirtualWorkspaces",
	},
	{
		Name: "upsert-as-update", Rule: "an update that creates an object through the virtual workspace is authorized like a creation",
		Edits: []Edit{{
			File:   "pkg/authz/gates.go",
			Before: `		if !found {`,
			After:  `		if found || !found {`,
		}},
		CaughtBy: "./pkg/authz", Test: "TestWithinVirtualWorkspaces",
	},
	{
		Name: "orphaned-objects", Rule: "a binding that takes over objects must not orphan them if it is deleted meanwhile",
		Edits: []Edit{{
			File:   "pkg/controllers/apibinding/apply.go",
			Before: `slices.Concat(binding.Status.BoundResources, awaited)`,
			After:  `slices.Concat(binding.Status.BoundResources, awaited[:0])`,
		}},
		CaughtBy: "./pkg/controllers/apibinding", Test: "TestEveryCrash",
	},
	{
		Name: "one-set", Rule: "if a claim loses a verb, open requests with it end",
		Edits: []Edit{{
			File:   "pkg/bindings/reach.go",
			Before: `stored: stored, verb: verb})}, nil`,
			After:  `stored: stored, verb: "get"})}, nil`,
		}},
		CaughtBy: "./pkg/bindings", Test: "TestReach",
	},
	{
		Name: "late-object", Rule: "an object must not be stored if its resource is no longer served after webhooks have admitted it",
		Edits: []Edit{{
			File:   "pkg/customresource/versions/storage.go",
			Before: `err == nil && before.IsZero() {`,
			After:  `err == nil && !before.IsZero() {`,
		}},
		CaughtBy: "./pkg/customresource", Test: "TestUnservedWhileCreating",
	},
}
