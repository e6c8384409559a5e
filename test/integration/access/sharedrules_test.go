package access

import (
	"net/http"
	"strings"
	"testing"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestRulesAcrossShards holds what one shard knows of the rules of logical
// clusters on another: those that are marked for it, and, when a workspace is
// created, whether its type may be used.
func TestRulesAcrossShards(t *testing.T) {
	t.Parallel()
	p := kit.People{Env: kit.Shared(t)}
	p.WorkspaceOn("root", "rules-one", "root")
	two := p.WorkspaceOn("root", "rules-two", "shard-1").Spec.Cluster
	t.Run("marked roles and bindings", func(t *testing.T) { testMarkedRules(t, p, two) })
	t.Run("use of workspace types", func(t *testing.T) { testUseOfTypes(t, p) })
}

// deeply makes reviews of config leave out who may enter.
func deeply(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("X-Kcp-Internal-Deep-SubjectAccessReview", "true")
			return next.RoundTrip(r)
		})
	})
	return config
}

func testMarkedRules(t *testing.T, p kit.People, two string) {
	const mark = "internal.kcp.io/replicate"
	there := p.With(p.Shard(1), two)
	bind := func(c kubernetes.Interface, name string, annotations map[string]string, role string) error {
		_, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
			RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: name}},
		}, metav1.CreateOptions{})
		return err
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader", Annotations: map[string]string{mark: "test"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}},
	}
	_, err := there.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, bind(there, "marked", map[string]string{mark: "test"}, "reader"))
	require.NoError(t, bind(there, "viewer", map[string]string{mark: "test"}, "view"))
	require.NoError(t, bind(there, "unmarked", nil, "reader"))
	p.BindUser("root:rules-two", "admin-2", "cluster-admin", 2)
	err = bind(p.As(2, "root:rules-two"), "climber", map[string]string{mark: "test"}, "reader")
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "internal.kcp.io/replicate")

	// The other shard has no such logical cluster, and knows what is marked.
	elsewhere := p.With(deeply(p.Shard(0)), two)
	may := func(c kubernetes.Interface, user string) bool {
		answer, err := c.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get", Resource: "configmaps"},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		return answer.Status.Allowed
	}
	p.Eventually("marked rules count on the other shard", func() bool { return may(elsewhere, "marked") })
	p.Eventually("with the system's roles, too", func() bool { return may(elsewhere, "viewer") })
	require.False(t, may(elsewhere, "unmarked"))
	require.True(t, may(p.With(deeply(p.Shard(1)), two), "unmarked"))
	require.False(t, may(p.With(deeply(p.Shard(0)), workspaceNamed(p.Env, "rules-one")), "marked"), "in their own logical cluster only")
	kit.RequireStatus(t, kit.AtHost(kit.WithToken(p.Proxy(), "user-5-token"), p.Shard(0).Host), kit.Request{Path: "/clusters/" + two + "/api"}, http.StatusForbidden)

	_, err = there.RbacV1().ClusterRoleBindings().Patch(t.Context(), "marked", kit.MergePatch, []byte(`{"metadata":{"annotations":{"`+mark+`":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	p.Eventually("what is not marked any more does not count", func() bool { return !may(elsewhere, "marked") })

	// What is being deleted counts at home until it is gone, and elsewhere no more.
	wait := func(finalizers string) {
		_, err := there.RbacV1().ClusterRoleBindings().Patch(t.Context(), "viewer", kit.MergePatch, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	wait(`["example.com/wait"]`)
	require.NoError(t, there.RbacV1().ClusterRoleBindings().Delete(t.Context(), "viewer", metav1.DeleteOptions{}))
	p.Eventually("what is being deleted does not count", func() bool { return !may(elsewhere, "viewer") })
	require.True(t, may(p.With(deeply(p.Shard(1)), two), "viewer"))
	wait("null")
	p.Eventually("what is gone does not count at home", func() bool { return !may(p.With(deeply(p.Shard(1)), two), "viewer") })
	require.False(t, may(elsewhere, "viewer"))
}

// testUseOfTypes holds that a user needs the verb use on the type of a new
// Workspace, in the logical cluster of the type, which is on another shard. Types that
// are new, and what administrators are told, are in TestNewTypes and TestPlugin of
// pkg/admission/workspacetype.
func testUseOfTypes(t *testing.T, p kit.People) {
	types := kinds.WorkspaceTypes.In(p.ProxyClient.Cluster(kit.Path("root:rules-two")))
	_, err := types.Create(t.Context(), &tenancyv1alpha1.WorkspaceType{
		ObjectMeta: metav1.ObjectMeta{Name: "special"},
		Spec: tenancyv1alpha1.WorkspaceTypeSpec{Extend: tenancyv1alpha1.WorkspaceTypeExtension{
			With: []tenancyv1alpha1.WorkspaceTypeReference{{Path: "root", Name: "universal"}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.BindUser("root:rules-one", "admin-1", "cluster-admin", 1)
	workspaces := kinds.Workspaces.In(kit.NewFactory(t, kit.WithToken(p.Proxy(), "user-1-token")).Cluster(kit.Path("root:rules-one")))
	create := func(name string, ref *tenancyv1alpha1.WorkspaceTypeReference) (*tenancyv1alpha1.Workspace, error) {
		return workspaces.Create(t.Context(), &tenancyv1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: ref},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	special := &tenancyv1alpha1.WorkspaceTypeReference{Path: "root:rules-two", Name: "special"}

	ws, err := create("plain", nil)
	require.NoError(t, err)
	require.Equal(t, &tenancyv1alpha1.WorkspaceTypeReference{Path: "root", Name: "universal"}, ws.Spec.Type, "everybody may use it, and sees what it is")
	ws, err = create("team", &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"})
	require.NoError(t, err)
	require.Equal(t, "root", ws.Spec.Type.Path)
	const oneAnswer = "the workspace type cannot be used: it does not exist, or you do not have the verb use on it"
	told := func(ref tenancyv1alpha1.WorkspaceTypeReference, want string) {
		t.Helper()
		_, err := create("x", &ref)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, want)
	}
	for _, ref := range []tenancyv1alpha1.WorkspaceTypeReference{
		*special, {Path: "root:rules-two", Name: "none"}, {Path: "root:nowhere", Name: "special"}, {Path: "root", Name: "home"}, {Name: "none"},
	} {
		told(ref, oneAnswer)
	}
	told(tenancyv1alpha1.WorkspaceTypeReference{Path: "root:rules-one", Name: "none"}, "workspace type root:rules-one:none does not exist")

	in := p.Admin("root:rules-two").RbacV1()
	_, err = in.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "use"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"use"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspacetypes"}, ResourceNames: []string{"special"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = in.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "look"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspacetypes"}, ResourceNames: []string{"special"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.BindUser("root:rules-two", "look", "look", 1)
	p.Eventually("who may read the type is told what is the matter", func() bool {
		_, err := create("x", special)
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "you do not have the verb use on workspacetypes/special in root:rules-two")
	})
	told(tenancyv1alpha1.WorkspaceTypeReference{Path: "root:rules-two", Name: "none"}, oneAnswer)
	p.BindUser("root:rules-two", "use", "use", 1)
	p.Eventually("the type may be used, though its rules are on another shard", func() bool {
		ws, err = create("x", special)
		return err == nil
	})
	require.Equal(t, special, ws.Spec.Type)
	require.NoError(t, in.ClusterRoleBindings().Delete(t.Context(), "use", metav1.DeleteOptions{}))
	p.Eventually("and then no more", func() bool {
		_, err = create("x", special)
		return apierrors.IsForbidden(err)
	})

	// The other way round: rules of root are asked for on the root shard.
	p.BindUser("root:rules-two", "admin-1", "cluster-admin", 1)
	inTwo := kinds.Workspaces.In(kit.NewFactory(t, kit.WithToken(p.Proxy(), "user-1-token")).Cluster(kit.Path("root:rules-two")))
	_, err = inTwo.Create(t.Context(), &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	_, err = inTwo.Create(t.Context(), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Path: "root", Name: "home"}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}
