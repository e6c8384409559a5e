package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestReplicas: what the cache server has of shards is what the shards have.
func TestReplicas(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("field by field", func(t *testing.T) { testReplicasFieldByField(t, kit.NewWorkspaceClientOn(e, "copied", 1).ForTest(t)) })
	t.Run("being deleted", func(t *testing.T) { testReplicasBeingDeleted(t, e) })
}

// testReplicasFieldByField compares the replicas of each kind with their objects.
func testReplicasFieldByField(t *testing.T, k kit.WorkspaceClient) {
	k.CreateExport("e", k.CreateSchema("v1", "widgets", "size")) // the server makes a slice of its own
	k.Create(kit.APIsV1Alpha1+"apiresourceschemas", peopleSchema, "v1.people.example.org")
	k.Create(kit.APIsV1Alpha1+"apiconversions", "%s", conversion("v1.people.example.org", "self"))
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"bind:it"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"bind:it","finalizers":["example.com/held"]},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind:it"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	policyFor(k, "p", "true", "")
	k.Create(registration+"mutatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"m"},"spec":{"reinvocationPolicy":"Never","matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["none.example.org"],"apiVersions":["*"],"resources":["widgets"]}]},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}}]}}`)
	k.Create(registration+"mutatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"m"},"spec":{"policyName":"m"}}`)
	for _, kind := range []string{"Mutating", "Validating"} {
		k.Create(registration+strings.ToLower(kind)+"webhookconfigurations", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%sWebhookConfiguration","metadata":{"name":"w"},"webhooks":[{"name":"w.example.org","sideEffects":"None","admissionReviewVersions":["v1"],"failurePolicy":"Ignore","clientConfig":{"url":"https://none.example.org"},"rules":[{"operations":["CREATE"],"apiGroups":["none.example.org"],"apiVersions":["*"],"resources":["*"]}]}]}`, kind)
	}
	k.Create(kit.TenancyPath+"workspaceauthenticationconfigurations", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceAuthenticationConfiguration","metadata":{"name":"a"},"spec":{"jwt":[{"issuer":{"url":"https://none.example.org","audiences":["a"]},"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"claim":"g","prefix":""}}}]}}`)
	k.CreateWorkspaceType("t", `"authenticationConfigurations":[{"name":"a"}]`)
	for name, kind := range map[string]string{"cachedresources": "CachedResource", "clustercachedresources": "ClusterCachedResource"} {
		k.Create("/apis/cache.kcp.io/v1alpha1/"+name, `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"%s","metadata":{"name":"c"},"spec":{"group":"none.example.org","version":"v1","resource":"%s"}}`, kind, name)
		field := strings.ToLower(kind[:1]) + kind[1:]
		k.Create("/apis/cache.kcp.io/v1alpha1/"+strings.TrimSuffix(name, "s")+"endpointslices", `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"%sEndpointSlice","metadata":{"name":"c"},"spec":{"%s":{"name":"c"},"export":{"name":"e"}}}`, kind, field)
	}
	for _, path := range []string{kit.TenancyPath + "workspacetypes/t", kit.APIsV1Alpha2 + "apiexports/e", kit.APIsV1Alpha1 + "apiexports/e"} {
		require.Equal(t, "root:copied", k.Get(path).GetAnnotations()["kcp.io/path"], path)
	}
	copied := k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"from-elsewhere","annotations":{"kcp.io/path":"root:elsewhere"}}}`)
	require.Equal(t, "root:copied", copied.GetAnnotations()["kcp.io/path"])

	discovery, err := documents.Of(k.CacheClient.Shard("*").Wildcard())
	require.NoError(t, err)
	_, served, err := discovery.ServerGroupsAndResources()
	require.NoError(t, err)
	var kinds []schema.GroupVersionResource
	for _, list := range served {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, kind := range list.APIResources {
			// Shards write the former directly. Of the next there is one version: no more than its
			// name is converted. What is namespaced is replicated by none.
			if gv.Group != "cache.shardplane.io" && kind.Name+"."+gv.Version != "apiexports.v1alpha1" && !kind.Namespaced {
				kinds = append(kinds, gv.WithResource(kind.Name))
			}
		}
	}
	require.Len(t, kinds, 20)
	for _, resource := range kinds {
		t.Run(resource.Version+" "+resource.Resource, func(t *testing.T) {
			k := k.ForTest(t)
			shard, cluster := "shard-1", k.ClusterName
			if resource.Resource == "shards" {
				shard, cluster = "root", "root"
			}
			k.Eventually("the replicas are those of the objects", func() bool {
				differs := compareAll(t, resource, kit.DynamicClient(t, k.ShardClients[shard], cluster), kit.DynamicClient(t, k.CacheClient.Shard(shard), cluster))
				t.Log(differs)
				return differs == ""
			})
		})
	}
}

// isMarked has the kinds of which a shard replicates those that are marked.
var isMarked = map[string]bool{
	"core.kcp.io/logicalclusters": true, "tenancy.kcp.io/workspaceauthenticationconfigurations": true,
	"rbac.authorization.k8s.io/clusterroles": true, "rbac.authorization.k8s.io/clusterrolebindings": true,
	"admissionregistration.k8s.io/mutatingwebhookconfigurations": true, "admissionregistration.k8s.io/validatingwebhookconfigurations": true,
	"admissionregistration.k8s.io/mutatingadmissionpolicies": true, "admissionregistration.k8s.io/mutatingadmissionpolicybindings": true,
	"admissionregistration.k8s.io/validatingadmissionpolicies": true, "admissionregistration.k8s.io/validatingadmissionpolicybindings": true,
}

// compareAll returns how the replicas of a logical cluster differ from its objects, of which
// there is one at least.
func compareAll(t *testing.T, resource schema.GroupVersionResource, from, to dynamic.Interface) string {
	t.Helper()
	sources, err := from.Resource(resource).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	replicas, err := to.Resource(resource).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	found := map[string]*unstructured.Unstructured{}
	for i := range replicas.Items {
		found[replicas.Items[i].GetName()] = &replicas.Items[i]
	}
	compared := 0
	for i := range sources.Items {
		source := &sources.Items[i]
		if isMarked[resource.Group+"/"+resource.Resource] && source.GetAnnotations()["internal.kcp.io/replicate"] == "" {
			continue
		}
		replica := found[source.GetName()]
		if replica == nil {
			return source.GetName() + " is missing"
		}
		annotations := replica.GetAnnotations()
		if annotations["kcp.io/shard"] == "" || annotations["cache.kcp.io/original-resource-version"] != source.GetResourceVersion() || annotations["cache.kcp.io/original-resource-UID"] != string(source.GetUID()) {
			return fmt.Sprintf("%s is a replica of something else: %v", source.GetName(), annotations)
		}
		for _, key := range []string{"kcp.io/shard", "cache.kcp.io/original-resource-version", "cache.kcp.io/original-resource-UID"} {
			delete(annotations, key)
		}
		replica.SetAnnotations(annotations)
		replica.SetResourceVersion(source.GetResourceVersion())
		require.Equal(t, source.Object, replica.Object)
		compared++
	}
	if compared == 0 || compared != len(found) {
		return fmt.Sprintf("there are %d objects to replicate, and %d replicas", compared, len(found))
	}
	return ""
}

// testReplicasBeingDeleted: who has something of an object that is being deleted on another
// shard keeps it until the object is gone; nobody gets anything new of it.
func testReplicasBeingDeleted(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "parting", 1).ForTest(t), kit.NewWorkspaceClient(e, "staying").ForTest(t)
	const hold, release = `{"metadata":{"finalizers":["example.com/held"]}}`, `{"metadata":{"finalizers":null}}`
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.CreateWorkspaceType("t", `"defaultAPIBindingLifecycle":"InitializeOnly"`)
	workspace := func() (int, string) {
		return k.TryDo(http.MethodPost, kit.TenancyPath+"workspaces?dryRun=All", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"w"},"spec":{"type":{"name":"t","path":"root:parting"}}}`)
	}
	k.BindPath(http.StatusCreated, "e", "root:parting", "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Eventually("the type is known", func() bool { code, _ := workspace(); return code == http.StatusCreated })

	held := []string{kit.APIsV1Alpha2 + "apiexports/e", kit.TenancyPath + "workspacetypes/t"}
	for _, path := range held {
		provider.Do(http.StatusOK, http.MethodPatch, path, hold)
		provider.Do(http.StatusOK, http.MethodDelete, path, "")
	}
	k.Eventually("no workspaces of the type are made", func() bool {
		code, says := workspace()
		return code == http.StatusForbidden && strings.Contains(says, "is being deleted")
	})
	k.BindPath(http.StatusCreated, "late", "root:parting", "e")
	k.UntilBinding("late", "APIExportValid", "False APIExportNotFound")
	require.Equal(t, "True <nil>", kit.Condition(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "APIExportValid"))
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	for _, path := range held {
		provider.Do(http.StatusOK, http.MethodPatch, path, release)
	}
	k.UntilBinding("e", "APIExportValid", "False APIExportNotFound")
	k.Eventually("the type is gone", func() bool {
		code, says := workspace()
		return code == http.StatusForbidden && !strings.Contains(says, "is being deleted")
	})
}
