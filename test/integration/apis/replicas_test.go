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
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestReplicas checks that the replicas on the cache server equal the objects on the shards.
func TestReplicas(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("field by field", func(t *testing.T) { testReplicasFieldByField(t, kit.NewWorkspaceClientOn(e, "copied", 1).ForTest(t)) })
	t.Run("being deleted", func(t *testing.T) { testReplicasBeingDeleted(t, e) })
}

// testReplicasFieldByField compares the replicas of each kind with their objects.
func testReplicasFieldByField(t *testing.T, k kit.WorkspaceClient) {
	k.CreateExport("e", k.CreateSchema("v1", "widgets", "size")) // creates an endpoint slice, too
	k.Create(kit.APIsV1Alpha1+"apiresourceschemas", kit.PeopleSchema, "v1.people.example.org")
	k.Create(kit.APIsV1Alpha1+"apiconversions", "%s", kit.Conversion("v1.people.example.org", "self"))
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"bind:it"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"bind:it","finalizers":["example.com/held"]},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind:it"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	kit.CreatePolicy(k, "p", "example.org", "true", "")
	createMutation(k, "none.example.org", "'a': 'b'")
	for _, kind := range []string{"Mutating", "Validating"} {
		k.Create(kit.Registration+strings.ToLower(kind)+"webhookconfigurations", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%sWebhookConfiguration","metadata":{"name":"w"},"webhooks":[{"name":"w.example.org","sideEffects":"None","admissionReviewVersions":["v1"],"failurePolicy":"Ignore","clientConfig":{"url":"https://none.example.org"},"rules":[{"operations":["CREATE"],"apiGroups":["none.example.org"],"apiVersions":["*"],"resources":["*"]}]}]}`, kind)
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
			// Shards write resources of cache.shardplane.io directly, v1alpha1 of APIExports is converted, and namespaced
			// resources are not replicated.
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
			k.Eventually("the replicas equal the objects", func() bool {
				differs := compareAll(t, resource, kit.DynamicClient(t, k.ShardClients[shard], cluster), kit.DynamicClient(t, k.CacheClient.Shard(shard), cluster))
				t.Log(differs)
				return differs == ""
			})
		})
	}
}

// isMarked contains the kinds of which shards replicate only annotated objects.
var replicatedByAnnotation = map[string]bool{
	"core.kcp.io/logicalclusters": true, "tenancy.kcp.io/workspaceauthenticationconfigurations": true,
	"rbac.authorization.k8s.io/clusterroles": true, "rbac.authorization.k8s.io/clusterrolebindings": true,
	"admissionregistration.k8s.io/mutatingwebhookconfigurations": true, "admissionregistration.k8s.io/validatingwebhookconfigurations": true,
	"admissionregistration.k8s.io/mutatingadmissionpolicies": true, "admissionregistration.k8s.io/mutatingadmissionpolicybindings": true,
	"admissionregistration.k8s.io/validatingadmissionpolicies": true, "admissionregistration.k8s.io/validatingadmissionpolicybindings": true,
}

// compareAll returns the difference between the replicas and the objects of a logical cluster, of which at least one must exist.
func compareAll(t *testing.T, resource schema.GroupVersionResource, from, to dynamic.Interface) string {
	t.Helper()
	sources := harness.List(t, from.Resource(resource), metav1.ListOptions{})
	replicas := harness.List(t, to.Resource(resource), metav1.ListOptions{})
	found := map[string]*unstructured.Unstructured{}
	for i := range replicas.Items {
		found[replicas.Items[i].GetName()] = &replicas.Items[i]
	}
	compared := 0
	for i := range sources.Items {
		source := &sources.Items[i]
		if replicatedByAnnotation[resource.Group+"/"+resource.Resource] && source.GetAnnotations()["internal.kcp.io/replicate"] == "" {
			continue
		}
		replica := found[source.GetName()]
		if replica == nil {
			return source.GetName() + " is missing"
		}
		annotations := replica.GetAnnotations()
		if annotations["kcp.io/shard"] == "" || annotations["cache.kcp.io/original-resource-version"] != source.GetResourceVersion() || annotations["cache.kcp.io/original-resource-UID"] != string(source.GetUID()) {
			return fmt.Sprintf("%s is a replica of an unexpected object: %v", source.GetName(), annotations)
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
		return fmt.Sprintf("%d objects must be replicated, and %d replicas exist", compared, len(found))
	}
	return ""
}

// testReplicasBeingDeleted checks an export and a type that are being deleted on another shard: consumers keep what they have until the
// object is removed, and cannot use them newly.
func testReplicasBeingDeleted(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "parting", 1).ForTest(t), kit.NewWorkspaceClient(e, "staying").ForTest(t)
	const hold, release = `{"metadata":{"finalizers":["example.com/held"]}}`, `{"metadata":{"finalizers":null}}`
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.CreateWorkspaceType("t", `"defaultAPIBindingLifecycle":"InitializeOnly"`)
	workspace := func() (int, string) {
		return k.TryDo(http.MethodPost, kit.TenancyPath+"workspaces?dryRun=All", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"w"},"spec":{"type":{"name":"t","path":"root:parting"}}}`)
	}
	k.BindPathReady("e", "root:parting", "e")
	k.Eventually("the type may be used", func() bool { code, _ := workspace(); return code == http.StatusCreated })

	held := []string{kit.APIsV1Alpha2 + "apiexports/e", kit.TenancyPath + "workspacetypes/t"}
	for _, path := range held {
		provider.Patch(path, hold)
		provider.Delete(path)
	}
	k.Eventually("the type may not be used while it is being deleted", func() bool {
		code, message := workspace()
		return code == http.StatusForbidden && strings.Contains(message, "is being deleted")
	})
	k.BindPath(http.StatusCreated, "late", "root:parting", "e")
	k.UntilBinding("late", "APIExportValid", "False APIExportNotFound")
	require.Equal(t, "True <nil>", kit.Condition(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "APIExportValid"))
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	for _, path := range held {
		provider.Patch(path, release)
	}
	k.UntilBinding("e", "APIExportValid", "False APIExportNotFound")
	k.Eventually("the type is deleted", func() bool {
		code, message := workspace()
		return code == http.StatusForbidden && !strings.Contains(message, "is being deleted")
	})
}
