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
		for _, subject := range append([]string{a.GetUser().GetName()}, a.GetUser().GetGroups()...) {
			for _, verb := range t[subject] {
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
		return nil, errors.New("no response")
	default:
		return nil, nil //nolint:nilnil // there is none
	}
	return lc, nil
}

// decides returns an authorizer with one decision for all requests.
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
	// authorized is true if access is authorized although the request is denied.
	authorized bool
	// merged is true if a front-proxy merges the responses of several shards.
	merged bool
}

func (c chainCase) check(t *testing.T, chain authorizer.Authorizer) {
	t.Helper()
	ctx := t.Context()
	switch c.cluster {
	case "":
	case nowhere:
		ctx = request.WithScope(ctx, request.Scope{UnresolvedPath: logicalcluster.NewPath("root:nowhere")})
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
	authorized := false
	got, reason, err := chain.Authorize(request.OnAccessAuthorized(ctx, func() { authorized = true }), attributes)
	require.Equal(t, c.want, got, reason)
	require.Equal(t, c.wantErr, err != nil, "%v", err)
	require.Equal(t, c.wantReason, reason)
	require.Equal(t, c.authorized || c.want == authorizer.DecisionAllow, authorized, "access authorized")
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
		{name: "masters in an unknown logical cluster", cluster: "nowhere", groups: masters, want: allow},
		{name: "masters on the wildcard", cluster: "*", groups: masters, want: allow},
		{name: "masters on the process", path: "/metrics", groups: masters, want: allow},
		{name: "masters of another logical cluster", cluster: "root", groups: masters, extra: elsewhere, want: none, wantReason: notPermitted},
		{name: "masters of one logical cluster on the wildcard", cluster: "*", groups: masters, extra: elsewhere, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins in a logical cluster", cluster: "root", groups: admins, want: allow},
		{name: "admins during initialization", cluster: "new", groups: admins, want: allow},
		{name: "admins in an unknown logical cluster", cluster: "nowhere", groups: admins, want: none, wantReason: notPermitted},
		{name: "admins on a path without a logical cluster", groups: admins, want: allow},
		{name: "admins on the wildcard", cluster: "*", groups: admins, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins list on the wildcard, merged", cluster: "*", groups: admins, verb: "list", merged: true, want: allow},
		{name: "admins watch on the wildcard, merged", cluster: "*", groups: admins, verb: "watch", merged: true, want: allow},
		{name: "admins list on the wildcard, unmerged", cluster: "*", groups: admins, verb: "list", want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins impersonate on the wildcard, merged", cluster: "*", groups: admins, verb: "impersonate", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins delete on the wildcard, merged", cluster: "*", groups: admins, verb: "deletecollection", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "admins of one logical cluster on the wildcard, merged", cluster: "*", groups: admins, extra: elsewhere, verb: "list", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "strangers on the wildcard, merged", cluster: "*", user: "stranger", verb: "list", merged: true, want: deny, wantReason: "requests for all logical clusters need group system:masters"},
		{name: "strangers elsewhere, merged", cluster: "root", user: "stranger", verb: "list", merged: true, want: none, wantReason: notPermitted},
		{name: "admins after a failed lookup", cluster: "broken", groups: admins, want: none, wantErr: true},
		{name: "admins in a system logical cluster", cluster: "system:admin", groups: admins, want: none, wantReason: notPermitted},
		{name: "masters in a system logical cluster", cluster: "system:admin", groups: masters, want: allow},
		{name: "servers in a missing logical cluster", cluster: "nowhere", groups: []string{"system:kcp:logical-cluster-admin"}, want: allow},

		{name: "owner", cluster: "root", user: "owner", want: allow},
		{name: "owner during initialization", cluster: "new", user: "owner", want: none, wantReason: notPermitted},
		{name: "reader", cluster: "root", user: "reader", want: allow},
		{name: "guest with access only", cluster: "root", user: "guest", want: none, authorized: true},
		{name: "guest without the required groups", cluster: "closed", user: "guest", want: none},
		{name: "guest with the required groups", cluster: "closed", user: "guest", groups: []string{"c"}, want: none, authorized: true},
		{name: "outsider with read permission, without access", cluster: "root", user: "outsider", want: none, wantReason: notPermitted},
		{name: "outsider with write permission, without access", cluster: "root", user: "outsider", verb: "create", want: none, wantReason: notPermitted},
		{name: "stranger", cluster: "root", user: "stranger", groups: []string{"team-1", user.AllAuthenticated}, want: none, wantReason: notPermitted},
		{name: "stranger in an unknown logical cluster", cluster: "nowhere", user: "stranger", want: none, wantReason: notPermitted},
		{name: "stranger after a failed lookup", cluster: "broken", user: "stranger", want: none, wantReason: notPermitted},
		{name: "stranger on a path without a logical cluster", user: "stranger", want: none, wantReason: notPermitted},
		{name: "stranger on the wildcard", cluster: "*", user: "stranger", groups: []string{user.AllAuthenticated}, want: deny, wantReason: "requests for all logical clusters need group system:masters"},

		{name: "own service account", cluster: "root", user: "system:serviceaccount:default:bot", extra: map[string][]string{request.ExtraClusterName: {"root"}}, want: allow},
		{name: "own service account during initialization", cluster: "new", user: "system:serviceaccount:default:bot", extra: map[string][]string{request.ExtraClusterName: {"new"}}, want: none, wantReason: notPermitted},
		{name: "foreign service account", cluster: "root", user: "system:serviceaccount:default:bot", extra: map[string][]string{request.ExtraClusterName: {"other"}}, want: none, wantReason: notPermitted},
		{name: "service account without a logical cluster", cluster: "root", user: "system:serviceaccount:default:bot", want: none, wantReason: notPermitted},

		{name: "none of the required groups", cluster: "closed", user: "owner", want: deny, wantReason: notPermitted},
		{name: "half of the required groups", cluster: "closed", user: "owner", groups: []string{"a"}, want: deny, wantReason: notPermitted},
		{name: "all groups of one alternative", cluster: "closed", user: "owner", groups: []string{"b", "a"}, want: allow},
		{name: "another alternative", cluster: "closed", user: "owner", groups: []string{"c"}, want: allow},
		{name: "admins without the required groups", cluster: "closed", groups: admins, want: allow},
		{name: "bootstrapper without the required groups", cluster: "closed", groups: bootstrapper, want: allow},
		{name: "admins of another logical cluster, with permissions in this one", cluster: "closed", user: "owner", groups: admins, extra: elsewhere, want: deny, wantReason: notPermitted},
		{name: "owner with the warrant of an admin", cluster: "closed", user: "owner", extra: warrant, want: deny, wantReason: notPermitted},
		{name: "owner with the warrant of a member", cluster: "closed", user: "owner", extra: member, want: allow},
		{name: "required groups without permissions", cluster: "closed", user: "stranger", groups: []string{"c"}, want: none, wantReason: notPermitted},

		{name: "probes", path: "/readyz", want: allow},
		{name: "one probe", path: "/readyz/etcd", want: allow},
		{name: "probes of a logical cluster", cluster: "root", path: "/readyz", want: none, wantReason: notPermitted},
		{name: "probes of an unknown logical cluster", cluster: "nowhere", path: "/readyz", want: none, wantReason: notPermitted},
		{name: "probes on a path without a logical cluster", cluster: nowhere, path: "/readyz", want: none, wantReason: notPermitted},
		{name: "metrics for a stranger", path: "/metrics", want: none, wantReason: notPermitted},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.check(t, newChain(t, nil)) })
	}
}

// TestUnavailable checks that incomplete data results in status 503 for all authorizers.
func TestUnavailable(t *testing.T) {
	incomplete := fmt.Errorf("%w: the cache server is unreachable", client.ErrIncomplete)
	for name, tc := range map[string]struct {
		change  func(*authz.Config)
		allowed bool // although data is incomplete
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
		"recent bindings": {change: func(c *authz.Config) {
			c.CatchUp = func(context.Context, authorizer.Attributes) (bool, error) { return false, incomplete }
		}},
		"incomplete rules that allow": {allowed: true, change: func(c *authz.Config) {
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
			require.ErrorContains(t, err, "the cache server is unreachable")
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
		return authorizer.DecisionDeny, "denied by the webhook", nil
	})
	owner := chainCase{cluster: "root", user: "owner", want: authorizer.DecisionAllow}
	owner.check(t, newChain(t, func(c *authz.Config) { c.Webhook = denies }))

	// The webhook decides, but rules authorize access so that the owner sees the reason.
	owner.want, owner.wantReason, owner.authorized = authorizer.DecisionDeny, "denied by the webhook", true
	owner.check(t, newChain(t, func(c *authz.Config) {
		c.Webhook, c.Options.Order = denies, []string{authz.StepGroups, authz.StepWebhook, authz.StepRBAC}
	}))

	stranger := chainCase{cluster: "root", user: "stranger", want: authorizer.DecisionDeny, wantReason: "denied by the webhook"}
	stranger.check(t, newChain(t, func(c *authz.Config) { c.Webhook = denies }))

	closed := chainCase{cluster: "closed", user: "stranger", want: authorizer.DecisionAllow}
	closed.check(t, newChain(t, func(c *authz.Config) { c.Webhook = denies }))

	_, err := authz.NewAuthorizer(authz.Config{Options: authz.Options{Order: []string{"Nonsense"}}})
	require.ErrorContains(t, err, "--authorization-order")
}

func TestMaximalPermission(t *testing.T) {
	policy := func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "owner" {
			return authorizer.DecisionDeny, "denied by the policy of the provider", nil
		}
		return authorizer.DecisionAllow, "", nil
	}
	chain := newChain(t, func(c *authz.Config) { c.MaximalPermission = policy })
	chainCase{cluster: "root", user: "owner", want: authorizer.DecisionDeny, wantReason: "denied by the policy of the provider", authorized: true}.check(t, chain)
	chainCase{cluster: "root", user: "reader", want: authorizer.DecisionAllow}.check(t, chain)
	chainCase{cluster: "root", user: "stranger", want: authorizer.DecisionNoOpinion, wantReason: notPermitted}.check(t, chain)
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
				return authorizer.DecisionDeny, "denied by the policy of the provider", nil
			}
			return authorizer.DecisionAllow, "", nil
		}
	})
	chainCase{cluster: "root", user: "stranger", want: authorizer.DecisionNoOpinion, wantReason: notPermitted}.check(t, chain)
	require.Zero(t, waits)
	impersonation := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}, Verb: "impersonate", Resource: "users", Name: "jane", ResourceRequest: true,
	}
	decision, _, err := chain.Authorize(request.WithClusterName(t.Context(), "root"), impersonation)
	require.NoError(t, err)
	require.Equal(t, authorizer.DecisionAllow, decision)
	require.Zero(t, waits, "impersonation must not wait")
	chainCase{cluster: "root", user: "owner", want: authorizer.DecisionDeny, wantReason: "denied by the policy of the provider", authorized: true}.check(t, chain)
	require.Equal(t, 1, waits)
}

func TestProtectedStatus(t *testing.T) {
	chain := newChain(t, nil)
	ctx := request.WithClusterName(t.Context(), "root")
	authorize := func(name string, groups []string, verb, group, resource, subresource string) authorizer.Decision {
		decision, _, err := chain.Authorize(ctx, authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: verb, APIGroup: group, Resource: resource, Subresource: subresource, ResourceRequest: true,
		})
		require.NoError(t, err)
		return decision
	}
	for resource, group := range map[string]string{"logicalclusters": "core.kcp.io", "workspaces": "tenancy.kcp.io", "apibindings": "apis.kcp.io"} {
		require.Equal(t, authorizer.DecisionDeny, authorize("owner", nil, "update", group, resource, "status"))
		require.Equal(t, authorizer.DecisionDeny, authorize("owner", nil, "patch", group, resource, "status"))
		require.Equal(t, authorizer.DecisionAllow, authorize("owner", nil, "get", group, resource, "status"))
		require.Equal(t, authorizer.DecisionAllow, authorize("owner", nil, "update", group, resource, ""))
		require.Equal(t, authorizer.DecisionAllow, authorize("", []string{request.GroupAdmin}, "update", group, resource, "status"))
		require.Equal(t, authorizer.DecisionAllow, authorize("", []string{user.SystemPrivilegedGroup}, "update", group, resource, "status"))
	}
	require.Equal(t, authorizer.DecisionAllow, authorize("owner", nil, "update", "example.com", "workspaces", "status"))
}

// TestWillHaveAccess checks which users wait for a logical cluster that is not ready: its owner and users with
// access, in the required groups.
func TestWillHaveAccess(t *testing.T) {
	const account = "system:serviceaccount:default:ci"
	home := map[string][]string{request.ExtraClusterName: {"parent"}}
	for name, tc := range map[string]struct {
		user            *user.DefaultInfo
		owner, requires string
		want            bool
	}{
		"owner":                      {user: &user.DefaultInfo{Name: "jane"}, owner: `{"username":"jane"}`, want: true},
		"another":                    {user: &user.DefaultInfo{Name: "joe"}, owner: `{"username":"jane"}`},
		"no owner":                   {user: &user.DefaultInfo{Name: ""}},
		"with access":                {user: &user.DefaultInfo{Name: "bound"}, owner: `{"username":"jane"}`, want: true},
		"not in the required groups": {user: &user.DefaultInfo{Name: "jane"}, owner: `{"username":"jane"}`, requires: "staff"},
		"in the required groups":     {user: &user.DefaultInfo{Name: "jane", Groups: []string{"staff"}}, owner: `{"username":"jane"}`, requires: "staff", want: true},
		"administrator":              {user: &user.DefaultInfo{Name: "bound", Groups: []string{request.GroupAdmin}}, owner: `{"username":"jane"}`, requires: "staff", want: true},
		"scoped elsewhere":           {user: &user.DefaultInfo{Name: "jane", Extra: map[string][]string{request.ExtraScopes: {"cluster:other"}}}, owner: `{"username":"jane"}`},
		"service account":            {user: &user.DefaultInfo{Name: account, Extra: home}, owner: `{"username":"` + account + `","extra":{"authentication.kcp.io/cluster-name":["parent"]}}`, want: true},
		"account of another cluster": {user: &user.DefaultInfo{Name: account, Extra: map[string][]string{request.ExtraClusterName: {"other"}}}, owner: `{"username":"` + account + `","extra":{"authentication.kcp.io/cluster-name":["parent"]}}`},
		"invalid owner":              {user: &user.DefaultInfo{Name: "jane"}, owner: `jane`},
		"owner without a name":       {user: &user.DefaultInfo{Name: ""}, owner: `{}`},
		"another user out of scope":  {user: &user.DefaultInfo{Name: "joe", Extra: map[string][]string{request.ExtraScopes: {"cluster:other"}}}, owner: `{"username":"jane"}`},
	} {
		t.Run(name, func(t *testing.T) {
			lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				logicalcluster.AnnotationKey: "new", "experimental.tenancy.kcp.io/owner": tc.owner, tenancy.RequiredGroupsAnnotation: tc.requires,
			}}, Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{Cluster: "parent"}}}
			rules := table{"bound": {"access"}}.authorizer()
			require.Equal(t, tc.want, authz.WillHaveAccess(request.WithClusterName(t.Context(), "new"), rules, lc, tc.user))
		})
	}
}
