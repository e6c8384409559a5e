package authz_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	notPermitted = authz.NotPermittedReason
	// nowhere is a path without a logical cluster.
	nowhere = "root:nowhere"
)

// table is a stand-in for RBAC: the verbs of each user or group in every logical cluster. "access" grants
// access to it.
type table map[string][]string

func (t table) authorizer() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		for _, who := range append([]string{a.GetUser().GetName()}, a.GetUser().GetGroups()...) {
			for _, verb := range t[who] {
				if verb == "*" || verb == a.GetVerb() {
					return authorizer.DecisionAllow, "", nil
				}
			}
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}

// find returns the logical clusters root, new, which is being initialized, and closed, which requires groups.
func find(_ context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	switch name {
	case "root":
	case "new":
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	case "closed":
		lc.Annotations = map[string]string{tenancy.RequiredGroupsAnnotation: "a,b;c"}
	case "broken":
		return nil, errors.New("no answer")
	default:
		return nil, nil //nolint:nilnil // there is none
	}
	return lc, nil
}

// decides returns an authorizer with one answer to all requests.
func decides(decision authorizer.Decision, reason string, err error) authorizer.AuthorizerFunc {
	return func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return decision, reason, err
	}
}

func newChain(t *testing.T, change func(*authz.Config)) authorizer.Authorizer {
	t.Helper()
	config := authz.Config{
		Options: authz.NewOptions("/readyz", "/readyz/*"), Find: find, Rules: table{
			request.GroupAdmin: {"*"}, request.GroupWorkspaceBootstrapper: {"*"}, "owner": {"*"}, "reader": {"access", "get"}, "guest": {"access"}, "outsider": {"get", "create"},
			"system:serviceaccount:default:bot": {"get"}, "system:kcp:logical-cluster-admin": {"get"},
		}.authorizer(),
	}
	if change != nil {
		change(&config)
	}
	chain, err := authz.NewAuthorizer(config)
	require.NoError(t, err)
	return chain
}

type chainCase struct {
	name       string
	cluster    logicalcluster.Name // "*" for all, empty for the process
	user       string
	groups     []string
	extra      map[string][]string
	verb, path string // get, if empty, of ConfigMaps
	want       authorizer.Decision
	wantReason string
	wantErr    bool
	// entered is true if access is authorized although the request is denied.
	entered bool
	// merged is true if a front-proxy merges the responses of several shards.
	merged bool
}

func (c chainCase) ask(t *testing.T, chain authorizer.Authorizer) {
	t.Helper()
	ctx := t.Context()
	switch c.cluster {
	case "":
	case nowhere:
		ctx = request.WithScope(ctx, request.Scope{Nowhere: logicalcluster.NewPath("root:nowhere")})
	case request.Wildcard:
		ctx = request.WithWildcard(ctx)
	default:
		ctx = request.WithClusterName(ctx, c.cluster)
	}
	if c.merged {
		ctx = request.WithMerged(ctx)
	}
	attributes := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: c.user, Groups: c.groups, Extra: c.extra}, Verb: cmp.Or(c.verb, "get"), Path: c.path, Resource: "configmaps", ResourceRequest: c.path == "",
	}
	entered := false
	got, reason, err := chain.Authorize(request.WithEntry(ctx, func() { entered = true }), attributes)
	require.Equal(t, c.want, got, reason)
	require.Equal(t, c.wantErr, err != nil, "%v", err)
	require.Equal(t, c.wantReason, reason)
	require.Equal(t, c.entered || c.want == authorizer.DecisionAllow, entered, "entered")
}

func TestChain(t *testing.T) {
	const (
		allow = authorizer.DecisionAllow
		deny  = authorizer.DecisionDeny
		none  = authorizer.DecisionNoOpinion
	)
	masters, admins := []string{user.SystemPrivilegedGroup}, []string{request.GroupAdmin}
	bootstrapper := []string{request.GroupWorkspaceBootstrapper}
	elsewhere := map[string][]string{request.ExtraScopes: {"cluster:other"}}
	warrant := map[string][]string{request.ExtraWarrant: {`{"user":"other","groups":["` + request.GroupAdmin + `"]}`}}
	member := map[string][]string{request.ExtraWarrant: {`{"user":"other","groups":["c"]}`}}
	for _, tc := range []chainCase{
		{name: "masters anywhere", cluster: "root", groups: masters, want: allow},
		{name: "masters see unknown logical clusters as empty", cluster: "nowhere", groups: masters, want: allow},
		{name: "masters on the wildcard", cluster: "*", groups: masters, want: allow},
		{name: "masters on the process", path: "/metrics", groups: masters, want: allow},
		{name: "masters of another logical cluster", cluster: "root", groups: masters, extra: elsewhere, want: none, wantReason: notPermitted},
		{name: "masters of one logical cluster on the wildcard", cluster: "*", groups: masters, extra: elsewhere, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins in a logical cluster", cluster: "root", groups: admins, want: allow},
		{name: "admins while it is initialized", cluster: "new", groups: admins, want: allow},
		{name: "admins in an unknown one", cluster: "nowhere", groups: admins, want: none, wantReason: notPermitted},
		{name: "admins on a path that leads nowhere, which gets 404", groups: admins, want: allow},
		{name: "admins on the wildcard", cluster: "*", groups: admins, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins list on the wildcard, merged", cluster: "*", groups: admins, verb: "list", merged: true, want: allow},
		{name: "admins watch on the wildcard, merged", cluster: "*", groups: admins, verb: "watch", merged: true, want: allow},
		{name: "admins list on the wildcard, unmerged", cluster: "*", groups: admins, verb: "list", want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins impersonate on the wildcard, merged", cluster: "*", groups: admins, verb: "impersonate", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins delete on the wildcard, merged", cluster: "*", groups: admins, verb: "deletecollection", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins of one logical cluster on the wildcard, merged", cluster: "*", groups: admins, extra: elsewhere, verb: "list", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "strangers on the wildcard, merged", cluster: "*", user: "stranger", verb: "list", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "strangers elsewhere, merged", cluster: "root", user: "stranger", verb: "list", merged: true, want: none, wantReason: notPermitted},
		{name: "a failed look-up never allows", cluster: "broken", groups: admins, want: none, wantErr: true},
		{name: "admins in a logical cluster of the system", cluster: "system:admin", groups: admins, want: none, wantReason: notPermitted},
		{name: "masters in a logical cluster of the system", cluster: "system:admin", groups: masters, want: allow},
		{name: "the servers before it exists", cluster: "nowhere", groups: []string{"system:kcp:logical-cluster-admin"}, want: allow},

		{name: "owner", cluster: "root", user: "owner", want: allow},
		{name: "owner too early", cluster: "new", user: "owner", want: none, wantReason: notPermitted},
		{name: "reader", cluster: "root", user: "reader", want: allow},
		{name: "guest, who may enter but not read", cluster: "root", user: "guest", want: none, entered: true},
		{name: "guest without the required groups", cluster: "closed", user: "guest", want: none},
		{name: "guest with them", cluster: "closed", user: "guest", groups: []string{"c"}, want: none, entered: true},
		{name: "outsider, who may read but not enter", cluster: "root", user: "outsider", want: none, wantReason: notPermitted},
		{name: "outsider, who may write but not enter", cluster: "root", user: "outsider", verb: "create", want: none, wantReason: notPermitted},
		{name: "stranger", cluster: "root", user: "stranger", groups: []string{"team-1", user.AllAuthenticated}, want: none, wantReason: notPermitted},
		{name: "stranger where nothing is", cluster: "nowhere", user: "stranger", want: none, wantReason: notPermitted},
		{name: "stranger cannot tell a failed look-up", cluster: "broken", user: "stranger", want: none, wantReason: notPermitted},
		{name: "stranger on a path that leads nowhere", user: "stranger", want: none, wantReason: notPermitted},
		{name: "stranger on the wildcard", cluster: "*", user: "stranger", groups: []string{user.AllAuthenticated}, want: deny, wantReason: "requests for all logical clusters need group system:masters"},

		{name: "own service account", cluster: "root", user: "system:serviceaccount:default:bot", extra: map[string][]string{request.ExtraClusterName: {"root"}}, want: allow},
		{name: "own service account too early", cluster: "new", user: "system:serviceaccount:default:bot", extra: map[string][]string{request.ExtraClusterName: {"new"}}, want: none, wantReason: notPermitted},
		{name: "foreign service account", cluster: "root", user: "system:serviceaccount:default:bot", extra: map[string][]string{request.ExtraClusterName: {"other"}}, want: none, wantReason: notPermitted},
		{name: "service account of nowhere", cluster: "root", user: "system:serviceaccount:default:bot", want: none, wantReason: notPermitted},

		{name: "none of the required groups", cluster: "closed", user: "owner", want: deny, wantReason: notPermitted},
		{name: "half of the required groups", cluster: "closed", user: "owner", groups: []string{"a"}, want: deny, wantReason: notPermitted},
		{name: "all of an alternative", cluster: "closed", user: "owner", groups: []string{"b", "a"}, want: allow},
		{name: "another alternative", cluster: "closed", user: "owner", groups: []string{"c"}, want: allow},
		{name: "admins, whatever the groups", cluster: "closed", groups: admins, want: allow},
		{name: "the bootstrapper, whatever the groups", cluster: "closed", groups: bootstrapper, want: allow},
		{name: "admins of another logical cluster, with rights in this one", cluster: "closed", user: "owner", groups: admins, extra: elsewhere, want: deny, wantReason: notPermitted},
		{name: "an owner with an admin's warrant", cluster: "closed", user: "owner", extra: warrant, want: deny, wantReason: notPermitted},
		{name: "an owner with a member's warrant", cluster: "closed", user: "owner", extra: member, want: allow},
		{name: "required groups and no rights", cluster: "closed", user: "stranger", groups: []string{"c"}, want: none, wantReason: notPermitted},

		{name: "probes", path: "/readyz", want: allow},
		{name: "one probe", path: "/readyz/etcd", want: allow},
		{name: "probes of a logical cluster", cluster: "root", path: "/readyz", want: none, wantReason: notPermitted},
		{name: "probes of none", cluster: "nowhere", path: "/readyz", want: none, wantReason: notPermitted},
		{name: "probes on a path that leads nowhere", cluster: nowhere, path: "/readyz", want: none, wantReason: notPermitted},
		{name: "metrics for a stranger", path: "/metrics", want: none, wantReason: notPermitted},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.ask(t, newChain(t, nil)) })
	}
}

// TestUnavailable checks that incomplete data results in status 503 for all authorizers.
func TestUnavailable(t *testing.T) {
	incomplete := fmt.Errorf("%w: the cache server is away", client.ErrIncomplete)
	for name, tc := range map[string]struct {
		change  func(*authz.Config)
		allowed bool // in spite of it
	}{
		"logical clusters": {change: func(c *authz.Config) {
			c.Find = func(context.Context, logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
				return nil, incomplete
			}
		}},
		"rules": {change: func(c *authz.Config) {
			c.Rules = decides(authorizer.DecisionNoOpinion, "", incomplete)
		}},
		"policies of providers": {change: func(c *authz.Config) {
			wrapped := fmt.Errorf("looking up: %w", incomplete)
			c.MaximalPermission = decides(authorizer.DecisionNoOpinion, "", wrapped).Authorize
		}},
		"what has just been bound": {change: func(c *authz.Config) {
			c.CatchUp = func(context.Context, authorizer.Attributes) (bool, error) { return false, incomplete }
		}},
		"rules of which one allows": {allowed: true, change: func(c *authz.Config) {
			c.Rules = decides(authorizer.DecisionAllow, "", incomplete)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			decision, _, err := newChain(t, tc.change).Authorize(request.WithClusterName(t.Context(), "root"), authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: "owner"}, Verb: "get", Resource: "configmaps", ResourceRequest: true,
			})
			if tc.allowed {
				require.Equal(t, authorizer.DecisionAllow, decision)
				return
			}
			require.Equal(t, authorizer.DecisionNoOpinion, decision)
			require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
			require.ErrorContains(t, err, "the cache server is away")
			seconds, _ := apierrors.SuggestsClientDelay(err)
			require.Equal(t, 1, seconds)
		})
	}
	plain := errors.New("broken")
	require.Equal(t, plain, authz.Unavailable(plain))
	require.NoError(t, authz.Unavailable(nil))
}

func TestOrder(t *testing.T) {
	denies := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetExtra()[request.ExtraAuthorizationClusterName][0] == "closed" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "says the webhook", nil
	})
	owner := chainCase{cluster: "root", user: "owner", want: authorizer.DecisionAllow}
	owner.ask(t, newChain(t, func(c *authz.Config) { c.Webhook = denies }))

	// The webhook decides, but rules authorize access so that the owner sees the reason.
	owner.want, owner.wantReason, owner.entered = authorizer.DecisionDeny, "says the webhook", true
	owner.ask(t, newChain(t, func(c *authz.Config) {
		c.Webhook, c.Options.Order = denies, []string{authz.StepGroups, authz.StepWebhook, authz.StepRBAC}
	}))

	stranger := chainCase{cluster: "root", user: "stranger", want: authorizer.DecisionDeny, wantReason: "says the webhook"}
	stranger.ask(t, newChain(t, func(c *authz.Config) { c.Webhook = denies }))

	closed := chainCase{cluster: "closed", user: "stranger", want: authorizer.DecisionAllow}
	closed.ask(t, newChain(t, func(c *authz.Config) { c.Webhook = denies }))

	_, err := authz.NewAuthorizer(authz.Config{Options: authz.Options{Order: []string{"Nonsense"}}})
	require.ErrorContains(t, err, "--authorization-order")
}

func TestMaximalPermission(t *testing.T) {
	policy := func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "owner" {
			return authorizer.DecisionDeny, "beyond the policy of the provider", nil
		}
		return authorizer.DecisionAllow, "", nil
	}
	chain := newChain(t, func(c *authz.Config) { c.MaximalPermission = policy })
	chainCase{cluster: "root", user: "owner", want: authorizer.DecisionDeny, wantReason: "beyond the policy of the provider", entered: true}.ask(t, chain)
	chainCase{cluster: "root", user: "reader", want: authorizer.DecisionAllow}.ask(t, chain)
	chainCase{cluster: "root", user: "stranger", want: authorizer.DecisionNoOpinion, wantReason: notPermitted}.ask(t, chain)
}

// TestCatchUp checks that allowed requests are authorized again after more data has arrived, also those of
// privileged groups, and that denied requests do not wait.
func TestCatchUp(t *testing.T) {
	known, waits := false, 0
	chain := newChain(t, func(c *authz.Config) {
		c.CatchUp = func(context.Context, authorizer.Attributes) (bool, error) {
			waits++
			defer func() { known = true }()
			return !known, nil
		}
		c.MaximalPermission = func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			if known {
				return authorizer.DecisionDeny, "beyond the policy of the provider", nil
			}
			return authorizer.DecisionAllow, "", nil
		}
	})
	chainCase{cluster: "root", user: "stranger", want: authorizer.DecisionNoOpinion, wantReason: notPermitted}.ask(t, chain)
	require.Zero(t, waits)
	impersonation := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}, Verb: "impersonate", Resource: "users", Name: "jane", ResourceRequest: true,
	}
	decision, _, err := chain.Authorize(request.WithClusterName(t.Context(), "root"), impersonation)
	require.NoError(t, err)
	require.Equal(t, authorizer.DecisionAllow, decision)
	require.Zero(t, waits, "users are no objects")
	chainCase{cluster: "root", user: "owner", want: authorizer.DecisionDeny, wantReason: "beyond the policy of the provider", entered: true}.ask(t, chain)
	require.Equal(t, 1, waits)
}

func TestProtectedStatus(t *testing.T) {
	chain := newChain(t, nil)
	ctx := request.WithClusterName(t.Context(), "root")
	ask := func(name string, groups []string, verb, group, resource, subresource string) authorizer.Decision {
		decision, _, err := chain.Authorize(ctx, authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: verb, APIGroup: group, Resource: resource, Subresource: subresource, ResourceRequest: true,
		})
		require.NoError(t, err)
		return decision
	}
	for resource, group := range map[string]string{"logicalclusters": "core.kcp.io", "workspaces": "tenancy.kcp.io", "apibindings": "apis.kcp.io"} {
		require.Equal(t, authorizer.DecisionDeny, ask("owner", nil, "update", group, resource, "status"))
		require.Equal(t, authorizer.DecisionDeny, ask("owner", nil, "patch", group, resource, "status"))
		require.Equal(t, authorizer.DecisionAllow, ask("owner", nil, "get", group, resource, "status"))
		require.Equal(t, authorizer.DecisionAllow, ask("owner", nil, "update", group, resource, ""))
		require.Equal(t, authorizer.DecisionAllow, ask("", []string{request.GroupAdmin}, "update", group, resource, "status"))
		require.Equal(t, authorizer.DecisionAllow, ask("", []string{user.SystemPrivilegedGroup}, "update", group, resource, "status"))
	}
	require.Equal(t, authorizer.DecisionAllow, ask("owner", nil, "update", "example.com", "workspaces", "status"))
}

// TestAwaits checks which users wait for a logical cluster that is not ready: its owner and users with
// access, in the required groups.
func TestAwaits(t *testing.T) {
	const account = "system:serviceaccount:default:ci"
	home := map[string][]string{request.ExtraClusterName: {"parent"}}
	for name, tc := range map[string]struct {
		user            *user.DefaultInfo
		owner, requires string
		want            bool
	}{
		"owner":                      {user: &user.DefaultInfo{Name: "jane"}, owner: `{"username":"jane"}`, want: true},
		"another":                    {user: &user.DefaultInfo{Name: "joe"}, owner: `{"username":"jane"}`},
		"nobody owns it":             {user: &user.DefaultInfo{Name: ""}},
		"bound already":              {user: &user.DefaultInfo{Name: "bound"}, owner: `{"username":"jane"}`, want: true},
		"not in the groups":          {user: &user.DefaultInfo{Name: "jane"}, owner: `{"username":"jane"}`, requires: "staff"},
		"in the groups":              {user: &user.DefaultInfo{Name: "jane", Groups: []string{"staff"}}, owner: `{"username":"jane"}`, requires: "staff", want: true},
		"an administrator":           {user: &user.DefaultInfo{Name: "bound", Groups: []string{request.GroupAdmin}}, owner: `{"username":"jane"}`, requires: "staff", want: true},
		"scoped elsewhere":           {user: &user.DefaultInfo{Name: "jane", Extra: map[string][]string{request.ExtraScopes: {"cluster:other"}}}, owner: `{"username":"jane"}`},
		"an account":                 {user: &user.DefaultInfo{Name: account, Extra: home}, owner: `{"username":"` + account + `","extra":{"authentication.kcp.io/cluster-name":["parent"]}}`, want: true},
		"its namesake of elsewhere":  {user: &user.DefaultInfo{Name: account, Extra: map[string][]string{request.ExtraClusterName: {"other"}}}, owner: `{"username":"` + account + `","extra":{"authentication.kcp.io/cluster-name":["parent"]}}`},
		"an owner that is none":      {user: &user.DefaultInfo{Name: "jane"}, owner: `jane`},
		"an owner without name":      {user: &user.DefaultInfo{Name: ""}, owner: `{}`},
		"the anonymous out of scope": {user: &user.DefaultInfo{Name: "joe", Extra: map[string][]string{request.ExtraScopes: {"cluster:other"}}}, owner: `{"username":"jane"}`},
	} {
		t.Run(name, func(t *testing.T) {
			lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				logicalcluster.AnnotationKey: "new", "experimental.tenancy.kcp.io/owner": tc.owner, tenancy.RequiredGroupsAnnotation: tc.requires,
			}}, Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{Cluster: "parent"}}}
			rules := table{"bound": {"access"}}.authorizer()
			require.Equal(t, tc.want, authz.Awaits(request.WithClusterName(t.Context(), "new"), rules, lc, tc.user))
		})
	}
}
