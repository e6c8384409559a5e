package access

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	garbageCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gadgets.garbage.example.org"},"spec":{"group":"garbage.example.org","scope":"Namespaced","names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

	gadgets = "/apis/garbage.example.org/v1/namespaces/default/gadgets"
)

// createOwned creates an object with references to owners, each "<apiVersion> <kind> <name> <uid>", which set blockOwnerDeletion
// if they end with " blocks".
func createOwned(k kit.WorkspaceClient, path, name string, owners ...string) *unstructured.Unstructured {
	k.T.Helper()
	var references []string
	for _, owner := range owners {
		of := strings.Fields(owner)
		references = append(references, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"blockOwnerDeletion":%t}`, of[0], of[1], of[2], of[3], len(of) > 4))
	}
	kind := ""
	switch path {
	case gadgets:
		kind = `"apiVersion":"garbage.example.org/v1","kind":"Gadget",`
	case kit.WidgetsPath:
		kind = `"apiVersion":"example.org/v1","kind":"Widget",`
	}
	return k.Create(path, `{%s"metadata":{"name":%q,"ownerReferences":[%s]}}`, kind, name, strings.Join(references, ","))
}

func owner(of *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s %s %s", of.GetAPIVersion(), of.GetKind(), of.GetName(), of.GetUID())
}

func deleteWithPolicy(k kit.WorkspaceClient, path, name, policy string) {
	k.T.Helper()
	k.RequireCode(http.StatusOK, http.MethodDelete, path+"/"+name, fmt.Sprintf(`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":%q}`, policy))
}

// TestGarbageCollection checks that objects are deleted with their owners as in Kubernetes, in each logical cluster and for every kind.
func TestGarbageCollection(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, k, other := kit.NewWorkspaceClient(e, "garbage-provider"), kit.NewWorkspaceClient(e, "garbage"), kit.NewWorkspaceClient(e, "garbage-other")
	provider.CreateExport("widgets", provider.CreateSchema("v1", "widgets", "size"))
	for _, in := range []kit.WorkspaceClient{k, other} {
		in.Create(kit.DefinitionsPath, garbageCRD)
		in.BindReady("widgets", provider, "widgets")
	}
	t.Run("background", func(t *testing.T) { testBackground(t, k.ForTest(t), other.ForTest(t)) })
	t.Run("foreground", func(t *testing.T) { testForeground(t, k.ForTest(t)) })
	t.Run("orphan", func(t *testing.T) { testOrphan(t, k.ForTest(t)) })
	t.Run("webhooks and policies", func(t *testing.T) { testPoliciesForCollector(t, k.ForTest(t)) })
	t.Run("owners of all kinds", func(t *testing.T) { testOwnersOfAllKinds(t, k.ForTest(t)) })
}

// TestGarbageCollectorRestarts checks that a collector also deletes objects if their owners were deleted while no collector was running.
func TestGarbageCollectorRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restarts a shard")
	}
	t.Parallel()
	// A private cluster, because the test restarts a shard.
	e := kit.Start(t, harness.Options{DevTokens: true})
	provider, k := kit.NewWorkspaceClient(e, "garbage-provider"), kit.NewWorkspaceClient(e, "garbage")
	provider.CreateExport("widgets", provider.CreateSchema("v1", "widgets", "size"))
	k.Create(kit.DefinitionsPath, garbageCRD)
	k.BindReady("widgets", provider, "widgets")

	a := createOwned(k, kit.ConfigMapsPath, "restart")
	g := createOwned(k, gadgets, "restart", owner(a))
	createOwned(k, kit.WidgetsPath, "restart", owner(g))
	shard := e.Component("root")
	shard.RestartWith("--enable-garbage-collector=false")
	withoutCollector(k)
	shard.RestartWith()
	deleteWithPolicy(k, kit.ConfigMapsPath, "restart", "Background")
	k.UntilDeleted(kit.WidgetsPath + "/restart")

	// Objects that were created without a collector must be collected.
	k.UntilDeleted(kit.ConfigMapsPath + "/probe-off")
	k.UntilDeleted(kit.ConfigMapsPath + "/orphan-off")
	for _, path := range []string{kit.ConfigMapsPath, gadgets, kit.WidgetsPath} {
		k.UntilDeleted(path + "/below-off")
		k.UntilDeleted(path + "/waits-off")
	}
}

// withoutCollector checks a server without a collector: nothing is collected, deletions set no finalizers, and the finalizers of
// the collector have no special meaning.
func withoutCollector(k kit.WorkspaceClient) {
	k.T.Helper()
	k.UntilCode(http.StatusOK, http.MethodGet, kit.WidgetsPath, "")
	for _, path := range []string{kit.ConfigMapsPath, gadgets, kit.WidgetsPath} {
		for _, policy := range []string{"Background", "Foreground", "Orphan"} {
			a := createOwned(k, path, "off")
			if policy == "Background" {
				createOwned(k, path, "below-off", owner(a)+" blocks")
			}
			deleteWithPolicy(k, path, "off", policy)
			k.RequireCode(http.StatusNotFound, http.MethodGet, path+"/off", "")
		}
		createOwned(k, path, "waits-off")
		k.Patch(path+"/waits-off", `{"metadata":{"finalizers":["foregroundDeletion"]}}`)
		deleteWithPolicy(k, path, "waits-off", "Background")
		waits := k.Get(path + "/waits-off")
		require.NotNil(k.T, waits.GetDeletionTimestamp())
		require.Equal(k.T, []string{"foregroundDeletion"}, waits.GetFinalizers())
	}
	createOwned(k, kit.ConfigMapsPath, "orphan-off")
	k.Patch(kit.ConfigMapsPath+"/orphan-off", `{"metadata":{"finalizers":["orphan"]}}`)
	deleteWithPolicy(k, kit.ConfigMapsPath, "orphan-off", "Foreground")
	require.Equal(k.T, []string{"orphan"}, k.Get(kit.ConfigMapsPath+"/orphan-off").GetFinalizers())
	createOwned(k, kit.ConfigMapsPath, "probe-off", "v1 ConfigMap absent none")
	for _, path := range []string{kit.ConfigMapsPath + "/probe-off", kit.ConfigMapsPath + "/below-off", gadgets + "/below-off", kit.WidgetsPath + "/below-off"} {
		require.Nil(k.T, k.Get(path).GetDeletionTimestamp(), path)
	}
}

// testOwnersOfAllKinds checks owners of system APIs, cluster-scoped kinds, custom resources and bound APIs.
func testOwnersOfAllKinds(t *testing.T, k kit.WorkspaceClient) {
	late := strings.NewReplacer("garbage.example.org", "owner.example.org", "gadget", "owner", "Gadget", "Owner").Replace(garbageCRD)
	for path, body := range map[string]string{
		"/apis/tenancy.kcp.io/v1alpha1/workspacetypes": `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"owner"}}`,
		kit.APIsV1Alpha2 + "apiexports":                `{"metadata":{"name":"owner"},"spec":{}}`,
		kit.RBACPath + "clusterroles":                  `{"metadata":{"name":"owner"}}`,
		"/api/v1/namespaces":                           `{"metadata":{"name":"owner"}}`,
		kit.DefinitionsPath:                            late,
		kit.WidgetsPath:                                `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"owner"}}`,
	} {
		a := k.Create(path, "%s", body)
		name := strings.ToLower("of-" + a.GetKind())
		createOwned(k, kit.ConfigMapsPath, name, owner(a))
		blocks := createOwned(k, kit.ConfigMapsPath, name+"-blocks", owner(a)+" blocks")
		require.Nil(t, k.Get(kit.ConfigMapsPath+"/"+blocks.GetName()).GetDeletionTimestamp())
		deleteWithPolicy(k, path, a.GetName(), "Foreground")
		k.UntilDeleted(kit.ConfigMapsPath + "/" + name + "-blocks")
		k.UntilDeleted(path + "/" + a.GetName())
		k.UntilDeleted(kit.ConfigMapsPath + "/" + name)
	}
}

func testBackground(t *testing.T, k, other kit.WorkspaceClient) {
	for _, in := range []kit.WorkspaceClient{k, other} {
		a := createOwned(in, kit.ConfigMapsPath, "a")
		b := createOwned(in, gadgets, "b", owner(a))
		c := createOwned(in, kit.WidgetsPath, "c", strings.Replace(owner(b), "/v1 ", "/v2 ", 1))
		createOwned(in, "/api/v1/namespaces/default/secrets", "d", owner(c))
	}
	// An owner in another logical cluster, by its name and UID.
	foreign := k.Get(kit.ConfigMapsPath + "/a")
	createOwned(other, kit.ConfigMapsPath, "foreign", owner(foreign))
	other.UntilDeleted(kit.ConfigMapsPath + "/foreign")
	deleteWithPolicy(k, kit.ConfigMapsPath, "a", "Background")
	k.UntilDeleted(gadgets + "/b")
	k.UntilDeleted(kit.WidgetsPath + "/c")
	k.UntilDeleted("/api/v1/namespaces/default/secrets/d")
	for _, path := range []string{kit.ConfigMapsPath + "/a", gadgets + "/b", kit.WidgetsPath + "/c", "/api/v1/namespaces/default/secrets/d"} {
		require.Nil(t, other.Get(path).GetDeletionTimestamp(), path)
	}
}

func testForeground(t *testing.T, k kit.WorkspaceClient) {
	a := createOwned(k, kit.ConfigMapsPath, "fore")
	b := createOwned(k, gadgets, "fore", owner(a)+" blocks")
	createOwned(k, kit.WidgetsPath, "fore", owner(b)+" blocks")
	createOwned(k, kit.ConfigMapsPath, "second", owner(b))
	stay := createOwned(k, kit.ConfigMapsPath, "stays")
	createOwned(k, kit.ConfigMapsPath, "shared", owner(a)+" blocks", owner(stay))
	k.Patch(kit.WidgetsPath+"/fore", `{"metadata":{"finalizers":["example.org/mine"]}}`)

	kubectl := exec.CommandContext(t.Context(), harness.Kubectl(t), "--kubeconfig", k.ShardKubeconfig(0), "--server", k.Config.Host+"/clusters/"+k.ClusterName,
		"delete", "configmap", "fore", "--cascade=foreground", "--wait=false")
	out, err := kubectl.CombinedOutput()
	require.NoError(t, err, "%s", out)
	k.Eventually("the last object is being deleted", func() bool { return k.Get(kit.WidgetsPath+"/fore").GetDeletionTimestamp() != nil })
	require.Equal(t, []string{"foregroundDeletion"}, k.Get(kit.ConfigMapsPath+"/fore").GetFinalizers())
	require.Equal(t, []string{"foregroundDeletion"}, k.Get(gadgets+"/fore").GetFinalizers())
	k.UntilDeleted(kit.ConfigMapsPath + "/second")
	k.Patch(kit.WidgetsPath+"/fore", `{"metadata":{"finalizers":null}}`)
	k.UntilDeleted(kit.WidgetsPath + "/fore")
	k.UntilDeleted(gadgets + "/fore")
	k.UntilDeleted(kit.ConfigMapsPath + "/fore")
	shared := k.Get(kit.ConfigMapsPath + "/shared").GetOwnerReferences()
	require.Len(t, shared, 1)
	require.Equal(t, "stays", shared[0].Name)
}

func testOrphan(t *testing.T, k kit.WorkspaceClient) {
	a := createOwned(k, kit.ConfigMapsPath, "leaves")
	b := createOwned(k, gadgets, "orphaned", owner(a))
	createOwned(k, kit.WidgetsPath, "below", owner(b))
	deleteWithPolicy(k, kit.ConfigMapsPath, "leaves", "Orphan")
	k.UntilDeleted(kit.ConfigMapsPath + "/leaves")
	require.Empty(t, k.Get(gadgets+"/orphaned").GetOwnerReferences())
	require.Len(t, k.Get(kit.WidgetsPath+"/below").GetOwnerReferences(), 1)
}

// testPoliciesForCollector checks that admission policies apply to the collector.
func testPoliciesForCollector(t *testing.T, k kit.WorkspaceClient) {
	const admission = "/apis/admissionregistration.k8s.io/v1/"
	k.Create(admission+"validatingadmissionpolicies", `{"metadata":{"name":"protect"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["DELETE"],"resources":["configmaps"]}]},"validations":[{"expression":"oldObject.metadata.name != 'protected' || request.userInfo.username != 'system:serviceaccount:kube-system:generic-garbage-collector'"}]}}`)
	k.Create(admission+"validatingadmissionpolicybindings", `{"metadata":{"name":"protect"},"spec":{"policyName":"protect","validationActions":["Deny"]}}`)
	k.Eventually("the policy is enforced", func() bool {
		createOwned(k, kit.ConfigMapsPath, "protected")
		code, _ := kit.Do(t, k.Config, kit.Request{Method: http.MethodDelete, Path: "/clusters/" + k.ClusterName + kit.ConfigMapsPath + "/protected", Header: http.Header{
			"Impersonate-User": {"system:serviceaccount:kube-system:generic-garbage-collector"}, "Impersonate-Group": {"system:masters"},
		}})
		if code == http.StatusOK {
			return false
		}
		deleteWithPolicy(k, kit.ConfigMapsPath, "protected", "Background")
		return true
	})
	createOwned(k, kit.ConfigMapsPath, "protected", "v1 ConfigMap absent none")
	createOwned(k, kit.ConfigMapsPath, "unprotected", "v1 ConfigMap absent none")
	k.UntilDeleted(kit.ConfigMapsPath + "/unprotected")
	require.Nil(t, k.Get(kit.ConfigMapsPath+"/protected").GetDeletionTimestamp())
	deleteWithPolicy(k, admission+"validatingadmissionpolicybindings", "protect", "Background")
	k.UntilDeleted(kit.ConfigMapsPath + "/protected")
}
