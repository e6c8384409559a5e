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

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// coreSchema creates a schema of a resource of the core group.
func coreSchema(k kit.WorkspaceClient, plural, singular, kind string) string {
	k.T.Helper()
	name := "v1." + plural + ".core"
	k.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"","scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"nodeName":{"type":"string","description":"Name of the node."}}}}}}]}}`,
		name, plural, singular, kind, kind+"List")
	return name
}

// TestBindingOfCoreGroup checks that pods, which are not built in, can be bound like any API. Quotas, policies, roles and the
// deletion of namespaces apply to them.
func TestBindingOfCoreGroup(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, k := kit.NewWorkspaceClient(e, "core-provider"), kit.NewWorkspaceClient(e, "core-consumer")
	identity := provider.CreateExport("pods", coreSchema(provider, "pods", "pod", "Pod"))
	k.BindReady("pods", provider, "pods")

	config := harness.In(k.Config, k.ClusterName)
	config.ContentType = runtime.ContentTypeProtobuf
	client := harness.Clientset(t, config, "")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	in := client.CoreV1().Pods("default")
	made := harness.Create(t, in, pod)
	require.Equal(t, "n", made.Spec.NodeName)
	made.Status.Phase = corev1.PodRunning
	_, err := in.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	require.NoError(t, err)
	list := harness.List(t, in, metav1.ListOptions{})
	require.Len(t, list.Items, 1)
	require.Equal(t, corev1.PodRunning, list.Items[0].Status.Phase)
	harness.Create(t, client.CoreV1().Secrets("default"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	found, err := client.Discovery().ServerResourcesForGroupVersion("v1")
	require.NoError(t, err)
	var names []string
	for i := range found.APIResources {
		names = append(names, found.APIResources[i].Name)
	}
	require.Subset(t, names, []string{"configmaps", "pods", "pods/status", "secrets"})
	require.Contains(t, fmt.Sprint(k.Get("/openapi/v3/api/v1").Object), "Name of the node.")
	everywhere := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}
	require.Len(t, kit.Field(everywhere.Get("/api/v1/pods:"+identity), "items"), 1)
	require.Contains(t, string(kit.RequireCode(t, k.Config, kit.Request{Method: http.MethodGet, Path: "/clusters/*/api/v1/pods", Header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}}}, http.StatusOK)), `"name":"a"`)
	provider.RequireCode(http.StatusNotFound, http.MethodGet, kit.PodsPath, "") // exporting an API does not serve it to the provider

	t.Run("rules", func(t *testing.T) { testCoreRules(provider.ForTest(t), k.ForTest(t)) })

	k.Delete(kit.APIsV1Alpha2 + "apibindings/pods")
	k.UntilDeleted(kit.PodsPath)
	k.Get("/api/v1/namespaces/default/secrets/a")
}

// testCoreRules checks that roles, policies of the provider, quotas and namespaces apply to bound pods.
func testCoreRules(provider, k kit.WorkspaceClient) {
	k.Allow("pods", "user-1", `{"apiGroups":[""],"resources":["pods"],"verbs":["get"]},{"nonResourceURLs":["/"],"verbs":["access"]}`)
	reader := k.As("user-1-token")
	reader.UntilCode(http.StatusOK, http.MethodGet, kit.PodsPath+"/a", "")
	require.Contains(k.T, reader.RequireCode(http.StatusForbidden, http.MethodDelete, kit.PodsPath+"/a", ""), `in API group \"\"`)

	const named = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{}}`
	provider.Create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"pods"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"validations":[{"expression":"object.apiVersion == 'v1' && request.kind.group == '' && request.resource.resource == 'pods'","message":"this is not a pod"},{"expression":"object.metadata.name != 'denied'","message":"denied by policy"}]}}`)
	provider.Create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"pods"},"spec":{"policyName":"pods","validationActions":["Deny"]}}`)
	text := k.UntilCode(http.StatusUnprocessableEntity, http.MethodPost, kit.PodsPath+"?dryRun=All", fmt.Sprintf(named, "denied"))
	require.Contains(k.T, text, "denied by policy")
	require.NotContains(k.T, text, "this is not a pod")

	k.Create("/api/v1/namespaces", `{"metadata":{"name":"few"}}`)
	k.Create("/api/v1/namespaces/few/resourcequotas", `{"metadata":{"name":"few"},"spec":{"hard":{"count/pods":"1"}}}`)
	k.Eventually("the quota is counted", func() bool {
		return kit.Field(k.Get("/api/v1/namespaces/few/resourcequotas/few"), "status", "used", "count/pods") == "0"
	})
	k.Create("/api/v1/namespaces/few/pods", named, "one")
	// Admission uses an informer, which may lag.
	k.Eventually("the quota is exceeded", func() bool {
		code, message := k.TryDo(http.MethodPost, "/api/v1/namespaces/few/pods", fmt.Sprintf(named, "two"))
		if code == http.StatusCreated {
			k.Delete("/api/v1/namespaces/few/pods/two")
		}
		return code == http.StatusForbidden && strings.Contains(message, "exceeded quota")
	})
	k.DeleteAndWait("/api/v1/namespaces/few")
	require.Len(k.T, kit.Field(k.Get("/api/v1/pods"), "items"), 1)
}
