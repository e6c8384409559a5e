package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// coreSchema makes a schema of a resource of the group "".
func coreSchema(k kit.WorkspaceClient, plural, singular, kind string) string {
	k.T.Helper()
	name := "v1." + plural + ".core"
	k.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"","scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"nodeName":{"type":"string","description":"Where it is."}}}}}}]}}`,
		name, plural, singular, kind, kind+"List")
	return name
}

// TestBindingOfCoreGroup: pods, which no shard has built in, are a bound API beside the
// secrets and config maps that are. Quota, policies, roles and the deletion of
// namespaces hold for them as for these.
func TestBindingOfCoreGroup(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, k := kit.NewWorkspaceClient(e, "core-provider"), kit.NewWorkspaceClient(e, "core-consumer")
	identity := provider.CreateExport("pods", coreSchema(provider, "pods", "pod", "Pod"))
	k.Bind("pods", provider, "pods")
	k.UntilBinding("pods", "Ready", "True <nil>")

	config := rest.CopyConfig(k.Config)
	config.Host += "/clusters/" + k.ClusterName
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	in := client.CoreV1().Pods("default")
	made, err := in.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "n", made.Spec.NodeName)
	made.Status.Phase = corev1.PodRunning
	_, err = in.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	require.NoError(t, err)
	list, err := in.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	require.Equal(t, corev1.PodRunning, list.Items[0].Status.Phase)
	_, err = client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	found, err := client.Discovery().ServerResourcesForGroupVersion("v1")
	require.NoError(t, err)
	var names []string
	for i := range found.APIResources {
		names = append(names, found.APIResources[i].Name)
	}
	require.Subset(t, names, []string{"configmaps", "pods", "pods/status", "secrets"})
	require.Contains(t, fmt.Sprint(k.Get("/openapi/v3/api/v1").Object), "Where it is.")
	everywhere := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}
	require.Len(t, kit.Field(everywhere.Get("/api/v1/pods:"+identity), "items"), 1)
	code, metadata := kit.Do(t, k.Config, kit.Request{Method: http.MethodGet, Path: "/clusters/*/api/v1/pods", Header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}}})
	require.Equal(t, http.StatusOK, code, "%s", metadata)
	require.Contains(t, string(metadata), `"name":"a"`)
	code, _ = provider.TryDo(http.MethodGet, kit.PodsPath, "")
	require.Equal(t, http.StatusNotFound, code, "a provider does not have what it exports")

	t.Run("rules", func(t *testing.T) { testCoreRules(provider.ForTest(t), k.ForTest(t)) })

	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/pods", "")
	k.Eventually("pods are gone", func() bool {
		code, _ := k.TryDo(http.MethodGet, kit.PodsPath, "")
		return code == http.StatusNotFound
	})
	k.Get("/api/v1/namespaces/default/secrets/a")
}

// testCoreRules: roles, the provider's policies, quotas and namespaces know what is bound.
func testCoreRules(provider, k kit.WorkspaceClient) {
	const rules = "/apis/rbac.authorization.k8s.io/v1/"
	k.Create(rules+"clusterroles", `{"metadata":{"name":"pods"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	k.Create(rules+"clusterrolebindings", `{"metadata":{"name":"pods"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"pods"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	reader := k.As("user-1-token")
	reader.Eventually("the reader may read", func() bool {
		code, _ := reader.TryDo(http.MethodGet, kit.PodsPath+"/a", "")
		return code == http.StatusOK
	})
	code, says := reader.TryDo(http.MethodDelete, kit.PodsPath+"/a", "")
	require.Equal(k.T, http.StatusForbidden, code)
	require.Contains(k.T, says, `in API group \"\"`)

	const named = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{}}`
	provider.Create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"pods"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"validations":[{"expression":"object.apiVersion == 'v1' && request.kind.group == '' && request.resource.resource == 'pods'","message":"this is no pod"},{"expression":"object.metadata.name != 'denied'","message":"denied by policy"}]}}`)
	provider.Create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"pods"},"spec":{"policyName":"pods","validationActions":["Deny"]}}`)
	k.Eventually("the policy is in effect", func() bool {
		code, says = k.TryDo(http.MethodPost, kit.PodsPath+"?dryRun=All", fmt.Sprintf(named, "denied"))
		return code == http.StatusUnprocessableEntity
	})
	require.Contains(k.T, says, "denied by policy")
	require.NotContains(k.T, says, "this is no pod")

	k.Create("/api/v1/namespaces", `{"metadata":{"name":"few"}}`)
	k.Create("/api/v1/namespaces/few/resourcequotas", `{"metadata":{"name":"few"},"spec":{"hard":{"count/pods":"1"}}}`)
	k.Eventually("the quota counts", func() bool {
		return kit.Field(k.Get("/api/v1/namespaces/few/resourcequotas/few"), "status", "used", "count/pods") == "0"
	})
	k.Create("/api/v1/namespaces/few/pods", named, "one")
	// Admission counts by an informer, which may be behind.
	k.Eventually("the quota is full", func() bool {
		code, says := k.TryDo(http.MethodPost, "/api/v1/namespaces/few/pods", fmt.Sprintf(named, "two"))
		if code == http.StatusCreated {
			k.Do(http.StatusOK, http.MethodDelete, "/api/v1/namespaces/few/pods/two", "")
		}
		return code == http.StatusForbidden && strings.Contains(says, "exceeded quota")
	})
	k.Do(http.StatusOK, http.MethodDelete, "/api/v1/namespaces/few", "")
	k.Eventually("the namespace is gone, and what was in it", func() bool {
		code, _ := k.TryDo(http.MethodGet, "/api/v1/namespaces/few", "")
		return code == http.StatusNotFound
	})
	require.Len(k.T, kit.Field(k.Get("/api/v1/pods"), "items"), 1)
}
