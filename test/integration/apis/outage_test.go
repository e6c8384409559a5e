package apis

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBoundAPIsInOutages: what is bound is served, by the provider's rules, while the
// provider's shard, root and the cache server are away, also by a shard that starts then.
func TestBoundAPIsInOutages(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops servers, and restarts them with other state")
	}
	t.Parallel()
	encryption := kit.WriteFile(t, t.TempDir(), "encryption.yaml", kit.EncryptionConfig("["+kit.EncryptionKey+"]"))
	e := kit.Start(t, harness.Options{Shards: 2, DevTokens: true, EncryptionConfig: encryption})
	provider := kit.NewWorkspaceClient(e, "away")
	k, late := kit.NewWorkspaceClientOn(e, "here", 1), kit.NewWorkspaceClientOn(e, "late", 1)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	bind := func(k kit.WorkspaceClient, name, role, kind, user string) {
		k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},"subjects":[{"kind":%q,"apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, name, role, kind, user)
	}
	provider.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["widgets","gadgets"],"verbs":["get","list"]}]}`)
	provider.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`)
	bind(provider, "read", "read", "Group", "apis.kcp.io:binding:system:authenticated")
	bind(provider, "bind", "bind", "User", "user-1")
	bind(k, "all", "cluster-admin", "User", "user-1")
	bind(late, "all", "cluster-admin", "User", "user-1")
	tenant, other := k.As("user-1-token"), late.As("user-1-token")
	tenant.BindPath(http.StatusCreated, "e", "root:away", "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	tenant.Eventually("the provider has a say here", func() bool {
		code, _ := tenant.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("b", "size", 1))
		return code == http.StatusForbidden
	})
	works := func(k kit.WorkspaceClient) {
		t.Helper()
		k.Eventually("it may be read, and not written", func() bool {
			read, _ := k.TryDo(http.MethodGet, kit.WidgetsPath, "")
			write, says := k.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("b", "size", 1))
			require.NotEqual(t, http.StatusCreated, write, says)
			// By the binding to what root exports, and by root's policy.
			workspaces, _ := k.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
			return read == http.StatusOK && write == http.StatusForbidden && workspaces == http.StatusOK
		})
	}
	works(tenant)
	judged := func(k kit.WorkspaceClient) {
		t.Helper()
		k.Eventually("the provider's policy judges, by its parameters", func() bool {
			refused, _ := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("d", "size", 4))
			allowed, _ := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("d", "size", 3))
			return refused == http.StatusUnprocessableEntity && allowed == http.StatusCreated
		})
	}
	provider.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"3"}}`)
	policyFor(provider, "limits", "!has(object.spec) || !has(object.spec.size) || object.spec.size <= int(params.data.most)", "limits")
	judged(k)
	views := newOutageViews(provider, k)
	// One whose parameters nobody has read yet.
	provider.Create(registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"unread"},"spec":{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["gadgets"]}]},"validations":[{"expression":"true"}]}}`)
	provider.Create(registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"unread"},"spec":{"policyName":"unread","validationActions":["Deny"],"paramRef":{"name":"unread","namespace":"default","parameterNotFoundAction":"Allow"}}}`)
	replicated := kit.DynamicClient(t, e.CacheClient.Shard("root"), provider.ClusterName).Resource(admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"))
	k.Eventually("the policy is replicated", func() bool {
		_, err := replicated.Get(t.Context(), "unread", metav1.GetOptions{})
		return err == nil
	})
	views.work("before")
	flavors := offer(provider, "CachedResource", "flavors", "")
	flavors.object("large", "")
	k.BindPath(http.StatusCreated, "flavors", "root:away", "flavors")
	untilSees(k, flavors.objects, "large")

	// The provider's shard is away: its exports can be bound.
	e.Component("root").Stop()
	other.BindPath(http.StatusCreated, "e", "root:away", "e")
	late.UntilBinding("e", "Ready", "True <nil>")
	require.Contains(t, other.BindPath(http.StatusForbidden, "none", "root:away", "none"), "no permission to bind to export root:away:none")
	works(other)
	judged(k)
	judged(late)
	views.work("rootless")
	// A front-proxy that starts now learns of the shards from the one that is there.
	e.Component("front-proxy").RestartWith("--other-shards=" + e.Component("shard-1").URL)
	through := k
	through.Config = e.Proxy()
	works(through.As("user-1-token"))

	// All others are, and the shard starts.
	e.Component("shard-1").Stop()
	e.Component("cache-server").Stop()
	sealed := base64.StdEncoding.EncodeToString([]byte("k8s:enc:aesgcm:v1:one:"))
	require.True(t, kit.StoredInFiles(t, filepath.Join(e.Dir, ".kcp-1", "data", "replicas"), sealed[:len(sealed)-4]), "what is encrypted in etcd is encrypted there")
	require.True(t, kit.StoredInFiles(t, filepath.Join(e.Dir, ".kcp-1", "data", "replicas"), `,"data":"`), "it says which data it belongs to")
	e.Component("shard-1").Start()
	untilSees(k, flavors.objects, "large")
	for _, k := range []kit.WorkspaceClient{tenant, other} {
		works(k)
	}
	k.Create(kit.WidgetsPath, "%s", kit.Widget("c", "size", 1))
	// Who consumes the export is known, too: endpoint slices go on.
	k.Create(kit.APIsV1Alpha1+"apiexportendpointslices", `{"metadata":{"name":"alone"},"spec":{"export":{"path":"root:away","name":"e"}}}`)
	k.Eventually("a new endpoint slice names the shard", func() bool {
		endpoints, _ := kit.Field(k.Get(kit.APIsV1Alpha1+"apiexportendpointslices/alone"), "status", "endpoints").([]any)
		return len(endpoints) == 1
	})
	judged(k)
	code, says := k.TryDo(http.MethodPost, boundGadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"unread"}}`)
	require.Equal(t, http.StatusServiceUnavailable, code, says)
	require.Contains(t, says, "the parameters cannot be read")
	views.work("alone")
	e.Component("front-proxy").Restart()
	works(through.As("user-1-token"))
	views.change()
	require.Equal(t, "True <nil>", kit.Condition(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "APIExportValid"))
	require.Contains(t, other.BindPath(http.StatusServiceUnavailable, "none", "root:away", "none"), "not everything is known yet")
	for _, path := range []string{"/apis", "/apis/example.org/v1/widgets"} { // it may exist
		code, says := onShard(provider, 1).ThroughExport("none", "*").TryDo(http.MethodGet, path, "")
		require.Equal(t, http.StatusServiceUnavailable, code, says)
	}

	// They come back, and what changes arrives, though each answer of the cache server takes 2 s; a front-proxy
	// starts in this time.
	e.Component("cache-server").StartWith("--synthetic-delay=2s")
	e.Component("root").Start()
	e.Component("front-proxy").Restart()
	e.Component("shard-1").Restart()
	works(through.As("user-1-token"))
	views.converge()
	flavors.object("small", "")
	untilSees(k, flavors.objects, "large", "small")
	second := provider.CreateSchema("v2", "widgets", "length")
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", fmt.Sprintf(`{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}}]}}`, second))
	k.Eventually("the new schema is bound", func() bool {
		all, _ := kit.Field(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "status", "boundResources").([]any)
		return fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["name"]) == second
	})
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":null}}`)
	tenant.Eventually("the policy is gone", func() bool {
		code, _ := tenant.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("d", "length", 1))
		return code == http.StatusCreated
	})
	e.Component("cache-server").RestartWith()
	testChangesMeanwhile(t, views)
}
