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
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestRulesAcrossShards checks the RBAC rules of logical clusters on other shards: those that are annotated for replication, and
// permission to use a workspace type when a workspace is created.
func TestRulesAcrossShards(t *testing.T) {
	t.Parallel()
	p := kit.People{Env: kit.Shared(t)}
	one, two := p.WorkspaceOn("root", "rules-one", "root").Spec.Cluster, p.WorkspaceOn("root", "rules-two", "shard-1").Spec.Cluster
	t.Run("replicated roles and bindings", func(t *testing.T) { testReplicatedRules(t, p, one, two) })
	t.Run("use of workspace types", func(t *testing.T) { testUseOfTypes(t, p) })
}

// withoutAccessCheck returns config for reviews that skip the check for access to the workspace.
func withoutAccessCheck(config *rest.Config) *rest.Config {
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

func testReplicatedRules(t *testing.T, p kit.People, one, two string) {
	const annotation = "internal.kcp.io/replicate"
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
		ObjectMeta: metav1.ObjectMeta{Name: "reader", Annotations: map[string]string{annotation: "test"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}},
	}
	harness.Create(t, there.RbacV1().ClusterRoles(), role)
	require.NoError(t, bind(there, "replicated", map[string]string{annotation: "test"}, "reader"))
	require.NoError(t, bind(there, "viewer", map[string]string{annotation: "test"}, "view"))
	require.NoError(t, bind(there, "not-replicated", nil, "reader"))
	p.BindUser("root:rules-two", "admin-2", "cluster-admin", 2)
	err := bind(p.As(2, "root:rules-two"), "climber", map[string]string{annotation: "test"}, "reader")
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "internal.kcp.io/replicate")

	// The other shard has only the replicated rules of the logical cluster.
	elsewhere := p.With(withoutAccessCheck(p.Shard(0)), two)
	may := func(c kubernetes.Interface, user string) bool {
		review := harness.Create(t, c.AuthorizationV1().SubjectAccessReviews(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get", Resource: "configmaps"},
			},
		})
		return review.Status.Allowed
	}
	p.Eventually("replicated rules apply on the other shard", func() bool { return may(elsewhere, "replicated") })
	p.Eventually("replicated bindings to bootstrap roles apply", func() bool { return may(elsewhere, "viewer") })
	require.False(t, may(elsewhere, "not-replicated"))
	require.True(t, may(p.With(withoutAccessCheck(p.Shard(1)), two), "not-replicated"))
	require.False(t, may(p.With(withoutAccessCheck(p.Shard(0)), one), "replicated"), "rules apply in their own logical cluster only")
	kit.RequireStatus(t, kit.AtHost(kit.WithToken(p.Proxy(), "user-5-token"), p.Shard(0).Host), kit.Request{Path: "/clusters/" + two + "/api"}, http.StatusForbidden)

	_, err = there.RbacV1().ClusterRoleBindings().Patch(t.Context(), "replicated", kit.MergePatch, []byte(`{"metadata":{"annotations":{"`+annotation+`":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	p.Eventually("rules without the annotation do not apply", func() bool { return !may(elsewhere, "replicated") })

	// If a binding is being deleted, it applies in its own shard until it is removed, but not on others.
	wait := func(finalizers string) {
		_, err := there.RbacV1().ClusterRoleBindings().Patch(t.Context(), "viewer", kit.MergePatch, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	wait(`["example.com/wait"]`)
	require.NoError(t, there.RbacV1().ClusterRoleBindings().Delete(t.Context(), "viewer", metav1.DeleteOptions{}))
	p.Eventually("a binding that is being deleted does not apply on other shards", func() bool { return !may(elsewhere, "viewer") })
	require.True(t, may(p.With(withoutAccessCheck(p.Shard(1)), two), "viewer"))
	wait("null")
	p.Eventually("a deleted binding does not apply", func() bool { return !may(p.With(withoutAccessCheck(p.Shard(1)), two), "viewer") })
	require.False(t, may(elsewhere, "viewer"))
}

// testUseOfTypes checks that a user must have the verb use on the type of a new Workspace, in the logical cluster of the type, which is
// on another shard. TestNewTypes and TestPlugin of pkg/admission/workspacetype cover new types and messages for administrators.
func testUseOfTypes(t *testing.T, p kit.People) {
	root := kit.WorkspaceClient{Env: p.ForTest(t), Config: p.Proxy(), ClusterName: "root:rules-two"}
	root.Create(kit.TenancyPath+"workspacetypes", "%s", kit.WorkspaceTypeWith("special", `"initializer":false`))
	p.BindUser("root:rules-one", "admin-1", "cluster-admin", 1)
	user := harness.NewFactory(t, kit.WithToken(p.Proxy(), "user-1-token"))
	createIn := func(parent string, ref *tenancyv1alpha1.WorkspaceTypeReference) (*tenancyv1alpha1.Workspace, error) {
		ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: ref}}
		return kinds.Workspaces.In(user.Cluster(kit.Path(parent))).Create(t.Context(), ws, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	create := func(ref *tenancyv1alpha1.WorkspaceTypeReference) (*tenancyv1alpha1.Workspace, error) {
		return createIn("root:rules-one", ref)
	}
	special := &tenancyv1alpha1.WorkspaceTypeReference{Path: "root:rules-two", Name: "special"}

	ws, err := create(nil)
	require.NoError(t, err)
	require.Equal(t, &tenancyv1alpha1.WorkspaceTypeReference{Path: "root", Name: "universal"}, ws.Spec.Type, "any user may use the default type")
	ws, err = create(&tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"})
	require.NoError(t, err)
	require.Equal(t, "root", ws.Spec.Type.Path)
	const denied = "the workspace type cannot be used: it does not exist, or you do not have the verb use on it"
	requireForbidden := func(ref tenancyv1alpha1.WorkspaceTypeReference, want string) {
		t.Helper()
		_, err := create(&ref)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, want)
	}
	for _, ref := range []tenancyv1alpha1.WorkspaceTypeReference{
		*special, {Path: "root:rules-two", Name: "none"}, {Path: "root:nowhere", Name: "special"}, {Path: "root", Name: "home"}, {Name: "none"},
	} {
		requireForbidden(ref, denied)
	}
	requireForbidden(tenancyv1alpha1.WorkspaceTypeReference{Path: "root:rules-one", Name: "none"}, "workspace type root:rules-one:none does not exist")

	for verb, name := range map[string]string{"use": "use", "get": "read"} {
		p.CreateRole("root:rules-two", name, rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspacetypes"}, ResourceNames: []string{"special"}})
	}
	p.BindUser("root:rules-two", "read", "read", 1)
	p.Eventually("users who may read the type get the reason", func() bool {
		_, err := create(special)
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "you do not have the verb use on workspacetypes/special in root:rules-two")
	})
	requireForbidden(tenancyv1alpha1.WorkspaceTypeReference{Path: "root:rules-two", Name: "none"}, denied)
	p.BindUser("root:rules-two", "use", "use", 1)
	p.Eventually("the type may be used", func() bool {
		ws, err = create(special)
		return err == nil
	})
	require.Equal(t, special, ws.Spec.Type)
	require.NoError(t, p.Admin("root:rules-two").RbacV1().ClusterRoleBindings().Delete(t.Context(), "use", metav1.DeleteOptions{}))
	p.Eventually("the type may not be used any more", func() bool {
		_, err = create(special)
		return apierrors.IsForbidden(err)
	})

	// The other direction: the type is on the shard of root.
	p.BindUser("root:rules-two", "admin-1", "cluster-admin", 1)
	_, err = createIn("root:rules-two", nil)
	require.NoError(t, err)
	_, err = createIn("root:rules-two", &tenancyv1alpha1.WorkspaceTypeReference{Path: "root", Name: "home"})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}
