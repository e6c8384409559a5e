package integration

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
)

// TestBoundAPIsInOutages: what is bound is served, by the provider's rules, while the
// provider's shard, root and the cache server are away, also by a shard that starts then.
func TestBoundAPIsInOutages(t *testing.T) {
	t.Parallel()
	encryption := writeFile(t, t.TempDir(), "encryption.yaml", encryptionConfig("["+aKey+"]"))
	e := start(t, harness.Options{Shards: 2, DevTokens: true, EncryptionConfig: encryption})
	provider := newAPIKinds(e, "away")
	k, late := newAPIKindsOn(e, "here", 1), newAPIKindsOn(e, "late", 1)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	bind := func(k apiKinds, name, role, kind, user string) {
		k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},"subjects":[{"kind":%q,"apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, name, role, kind, user)
	}
	provider.create(rbacV1+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["widgets","gadgets"],"verbs":["get","list"]}]}`)
	provider.create(rbacV1+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`)
	bind(provider, "read", "read", "Group", "apis.kcp.io:binding:system:authenticated")
	bind(provider, "bind", "bind", "User", "user-1")
	bind(k, "all", "cluster-admin", "User", "user-1")
	bind(late, "all", "cluster-admin", "User", "user-1")
	tenant, other := k.as("user-1-token"), late.as("user-1-token")
	tenant.bindPath(http.StatusCreated, "e", "root:away", "e")
	k.until("e", "Ready", "True <nil>")
	k.create(widgets, "%s", widget("a", "size", 1))
	tenant.eventually("the provider has a say here", func() bool {
		code, _ := tenant.status(http.MethodPost, widgets+"?dryRun=All", widget("b", "size", 1))
		return code == http.StatusForbidden
	})
	works := func(k apiKinds) {
		t.Helper()
		k.eventually("it may be read, and not written", func() bool {
			read, _ := k.status(http.MethodGet, widgets, "")
			write, says := k.status(http.MethodPost, widgets, widget("b", "size", 1))
			require.NotEqual(t, http.StatusCreated, write, says)
			// By the binding to what root exports, and by root's policy.
			workspaces, _ := k.status(http.MethodGet, tenancyV1+"workspaces", "")
			return read == http.StatusOK && write == http.StatusForbidden && workspaces == http.StatusOK
		})
	}
	works(tenant)
	judged := func(k apiKinds) {
		t.Helper()
		k.eventually("the provider's policy judges, by its parameters", func() bool {
			refused, _ := k.status(http.MethodPost, widgets+"?dryRun=All", widget("d", "size", 4))
			allowed, _ := k.status(http.MethodPost, widgets+"?dryRun=All", widget("d", "size", 3))
			return refused == http.StatusUnprocessableEntity && allowed == http.StatusCreated
		})
	}
	provider.create(configMaps, `{"metadata":{"name":"limits"},"data":{"most":"3"}}`)
	provider.policyFor("limits", "!has(object.spec) || !has(object.spec.size) || object.spec.size <= int(params.data.most)", "limits")
	judged(k)
	views := newOutageViews(provider, k)
	// One whose parameters nobody has read yet.
	provider.create(registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"unread"},"spec":{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["gadgets"]}]},"validations":[{"expression":"true"}]}}`)
	provider.create(registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"unread"},"spec":{"policyName":"unread","validationActions":["Deny"],"paramRef":{"name":"unread","namespace":"default","parameterNotFoundAction":"Allow"}}}`)
	replicated := dynamicIn(t, e.cache.Shard("root"), provider.cluster).Resource(admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"))
	k.eventually("the policy is replicated", func() bool {
		_, err := replicated.Get(t.Context(), "unread", metav1.GetOptions{})
		return err == nil
	})
	views.work("before")
	flavors := offer(provider, "CachedResource", "flavors", "")
	flavors.object("large", "")
	k.bindPath(http.StatusCreated, "flavors", "root:away", "flavors")
	k.untilSees(flavors.objects, "large")

	// The provider's shard is away: its exports can be bound.
	e.Component("root").Stop()
	other.bindPath(http.StatusCreated, "e", "root:away", "e")
	late.until("e", "Ready", "True <nil>")
	require.Contains(t, other.bindPath(http.StatusForbidden, "none", "root:away", "none"), "no permission to bind to export root:away:none")
	works(other)
	judged(k)
	judged(late)
	views.work("rootless")
	// A front-proxy that starts now learns of the shards from the one that is there.
	e.Component("front-proxy").RestartWith("--other-shards=" + e.Component("shard-1").URL)
	through := k
	through.config = e.Proxy()
	works(through.as("user-1-token"))

	// All others are, and the shard starts.
	e.Component("shard-1").Stop()
	e.Component("cache-server").Stop()
	sealed := base64.StdEncoding.EncodeToString([]byte("k8s:enc:aesgcm:v1:one:"))
	require.True(t, inFiles(t, filepath.Join(e.Dir, ".kcp-1", "data", "replicas"), sealed[:len(sealed)-4]), "what is encrypted in etcd is encrypted there")
	require.True(t, inFiles(t, filepath.Join(e.Dir, ".kcp-1", "data", "replicas"), `,"data":"`), "it says which data it belongs to")
	e.Component("shard-1").Start()
	k.untilSees(flavors.objects, "large")
	for _, k := range []apiKinds{tenant, other} {
		works(k)
	}
	k.create(widgets, "%s", widget("c", "size", 1))
	// Who consumes the export is known, too: endpoint slices go on.
	k.create(apisV1+"apiexportendpointslices", `{"metadata":{"name":"alone"},"spec":{"export":{"path":"root:away","name":"e"}}}`)
	k.eventually("a new endpoint slice names the shard", func() bool {
		endpoints, _ := field(k.get(apisV1+"apiexportendpointslices/alone"), "status", "endpoints").([]any)
		return len(endpoints) == 1
	})
	judged(k)
	code, says := k.status(http.MethodPost, boundGadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"unread"}}`)
	require.Equal(t, http.StatusUnprocessableEntity, code, says)
	require.Contains(t, says, "the parameters cannot be read")
	views.work("alone")
	e.Component("front-proxy").Restart()
	works(through.as("user-1-token"))
	views.change()
	require.Equal(t, "True <nil>", condition(k.get(apisV2+"apibindings/e"), "APIExportValid"))
	require.Contains(t, other.bindPath(http.StatusServiceUnavailable, "none", "root:away", "none"), "not everything is known yet")
	for _, path := range []string{"/apis", "/apis/example.org/v1/widgets"} { // it may exist
		code, says := provider.at(1).through("none", "*").status(http.MethodGet, path, "")
		require.Equal(t, http.StatusServiceUnavailable, code, says)
	}

	// They come back, and what changes arrives, though each answer of the cache server takes 2 s; a front-proxy
	// starts in this time.
	e.Component("cache-server").StartWith("--synthetic-delay=2s")
	e.Component("root").Start()
	e.Component("front-proxy").Restart()
	e.Component("shard-1").Restart()
	works(through.as("user-1-token"))
	views.converge()
	flavors.object("small", "")
	k.untilSees(flavors.objects, "large", "small")
	second := provider.schema("v2", "widgets", "length")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", fmt.Sprintf(`{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}}]}}`, second))
	k.eventually("the new schema is bound", func() bool {
		all, _ := field(k.get(apisV2+"apibindings/e"), "status", "boundResources").([]any)
		return fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["name"]) == second
	})
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":null}}`)
	tenant.eventually("the policy is gone", func() bool {
		code, _ := tenant.status(http.MethodPost, widgets, widget("d", "length", 1))
		return code == http.StatusCreated
	})
	e.Component("cache-server").RestartWith()
	testChangesMeanwhile(t, views)
}
