package virtual

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

// TestBoundAPIsInOutages checks that bound APIs are served, with the rules of the provider, while the provider's shard, root and the
// cache server are unavailable, also by a shard that starts meanwhile.
func TestBoundAPIsInOutages(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops servers, and restarts them with other state")
	}
	t.Parallel()
	encryption := kit.WriteFile(t, t.TempDir(), "encryption.yaml", kit.EncryptionConfig("["+kit.EncryptionKey+"]"))
	e := kit.Start(t, harness.Options{Shards: 2, DevTokens: true, EncryptionConfig: encryption})
	provider := kit.NewWorkspaceClient(e, "outage")
	k, late := kit.NewWorkspaceClientOn(e, "here", 1), kit.NewWorkspaceClientOn(e, "late", 1)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
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
	tenant.BindPath(http.StatusCreated, "e", "root:outage", "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	tenant.UntilCode(http.StatusForbidden, http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("b", "size", 1))
	works := func(k kit.WorkspaceClient) {
		t.Helper()
		k.Eventually("the tenant may read but not write", func() bool {
			read, _ := k.TryDo(http.MethodGet, kit.WidgetsPath, "")
			write, message := k.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("b", "size", 1))
			require.NotEqual(t, http.StatusCreated, write, message)
			// With the binding to an export of root, and the policy of root.
			workspaces, _ := k.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
			return read == http.StatusOK && write == http.StatusForbidden && workspaces == http.StatusOK
		})
	}
	works(tenant)
	untilPolicyApplies := func(k kit.WorkspaceClient) {
		t.Helper()
		k.Eventually("the provider's policy applies with its parameters", func() bool {
			refused, _ := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("d", "size", 4))
			allowed, _ := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("d", "size", 3))
			return refused == http.StatusUnprocessableEntity && allowed == http.StatusCreated
		})
	}
	provider.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"3"}}`)
	kit.CreatePolicy(provider, "limits", "example.org", "!has(object.spec) || !has(object.spec.size) || object.spec.size <= int(params.data.most)", "limits")
	untilPolicyApplies(k)
	vws := newOutageVirtualWorkspaces(provider, k)
	// The parameters of this policy have not been read yet.
	provider.Create(kit.Registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"unread"},"spec":{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["gadgets"]}]},"validations":[{"expression":"true"}]}}`)
	provider.Create(kit.Registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"unread"},"spec":{"policyName":"unread","validationActions":["Deny"],"paramRef":{"name":"unread","namespace":"default","parameterNotFoundAction":"Allow"}}}`)
	replicated := kit.DynamicClient(t, e.CacheClient.Shard("root"), provider.ClusterName).Resource(admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"))
	k.Eventually("the policy is replicated", func() bool {
		_, err := replicated.Get(t.Context(), "unread", metav1.GetOptions{})
		return err == nil
	})
	vws.work("before")
	flavors := offer(provider, "CachedResource", "flavors", "")
	flavors.object("large", "")
	k.BindPath(http.StatusCreated, "flavors", "root:outage", "flavors")
	kit.UntilListed(k, flavors.objects, "large")

	// The provider's shard is stopped. Its exports can be bound.
	e.Component("root").Stop()
	other.BindPath(http.StatusCreated, "e", "root:outage", "e")
	late.UntilBinding("e", "Ready", "True <nil>")
	require.Contains(t, other.BindPath(http.StatusForbidden, "none", "root:outage", "none"), "no permission to bind to export root:outage:none")
	works(other)
	untilPolicyApplies(k)
	untilPolicyApplies(late)
	vws.work("rootless")
	// A front-proxy that starts now lists the shards on the remaining one.
	e.Component("front-proxy").RestartWith("--other-shards=" + e.Component("shard-1").URL)
	through := k
	through.Config = e.Proxy()
	works(through.As("user-1-token"))

	// All other servers are stopped, and the shard starts.
	e.Component("shard-1").Stop()
	e.Component("cache-server").Stop()
	sealed := base64.StdEncoding.EncodeToString([]byte("k8s:enc:aesgcm:v1:one:"))
	require.True(t, kit.StoredInFiles(t, filepath.Join(e.Dir, ".kcp-1", "data", "replicas"), sealed[:len(sealed)-4]), "the snapshot must be encrypted like etcd")
	require.True(t, kit.StoredInFiles(t, filepath.Join(e.Dir, ".kcp-1", "data", "replicas"), `,"data":"`), "the snapshot must contain authenticated keys")
	e.Component("shard-1").Start()
	kit.UntilListed(k, flavors.objects, "large")
	for _, k := range []kit.WorkspaceClient{tenant, other} {
		works(k)
	}
	k.Create(kit.WidgetsPath, "%s", kit.Widget("c", "size", 1))
	// Endpoint slices are reconciled, because the consumers of the export are in the cache.
	k.Create(kit.APIsV1Alpha1+"apiexportendpointslices", `{"metadata":{"name":"alone"},"spec":{"export":{"path":"root:outage","name":"e"}}}`)
	k.Eventually("the new endpoint slice contains the URL of the shard", func() bool {
		endpoints, _ := kit.Field(k.Get(kit.APIsV1Alpha1+"apiexportendpointslices/alone"), "status", "endpoints").([]any)
		return len(endpoints) == 1
	})
	untilPolicyApplies(k)
	message := k.RequireCode(http.StatusServiceUnavailable, http.MethodPost, boundGadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"unread"}}`)
	require.Contains(t, message, "the parameters cannot be read")
	vws.work("alone")
	e.Component("front-proxy").Restart()
	works(through.As("user-1-token"))
	vws.change()
	require.Equal(t, "True <nil>", kit.Condition(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "APIExportValid"))
	require.Contains(t, other.BindPath(http.StatusServiceUnavailable, "none", "root:outage", "none"), "not all objects are loaded yet")
	for _, path := range []string{"/apis", "/apis/example.org/v1/widgets"} { // the export may exist
		kit.OnShard(provider, 1).ThroughExport("none", "*").RequireCode(http.StatusServiceUnavailable, http.MethodGet, path, "")
	}

	// The servers start again, and changes are replicated, although each response of the cache server takes 2 s. A front-proxy
	// starts meanwhile.
	e.Component("cache-server").StartWith("--synthetic-delay=2s")
	e.Component("root").Start()
	e.Component("front-proxy").Restart()
	e.Component("shard-1").Restart()
	works(through.As("user-1-token"))
	vws.converge()
	flavors.object("small", "")
	kit.UntilListed(k, flavors.objects, "large", "small")
	second := provider.CreateSchema("v2", "widgets", "length")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", fmt.Sprintf(`{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}}]}}`, second))
	k.Eventually("the new schema is bound", func() bool {
		all, _ := kit.Field(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "status", "boundResources").([]any)
		return fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["name"]) == second
	})
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":null}}`)
	tenant.UntilCode(http.StatusCreated, http.MethodPost, kit.WidgetsPath, kit.Widget("d", "length", 1))
	e.Component("cache-server").RestartWith()
	testChangesMeanwhile(t, vws)
}
