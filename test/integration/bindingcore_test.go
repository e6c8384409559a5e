package integration

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
)

const pods = "/api/v1/namespaces/default/pods"

// coreSchema makes a schema of a resource of the group "".
func (k apiKinds) coreSchema(plural, singular, kind string) string {
	k.t.Helper()
	name := "v1." + plural + ".core"
	k.create(apisV1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"","scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"nodeName":{"type":"string","description":"Where it is."}}}}}}]}}`,
		name, plural, singular, kind, kind+"List")
	return name
}

// TestBindingOfCoreGroup: pods, which no shard has built in, are a bound API beside the
// secrets and config maps that are. Quota, policies, roles and the deletion of
// namespaces hold for them as for these.
func TestBindingOfCoreGroup(t *testing.T) {
	e := newEnv(t, two.Get(t))
	provider, k := newAPIKinds(e, "core-provider"), newAPIKinds(e, "core-consumer")
	identity := provider.export("pods", provider.coreSchema("pods", "pod", "Pod"))
	k.bind("pods", provider, "pods")
	k.until("pods", "Ready", "True <nil>")

	config := rest.CopyConfig(k.config)
	config.Host += "/clusters/" + k.cluster
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
	require.Contains(t, fmt.Sprint(k.get("/openapi/v3/api/v1").Object), "Where it is.")
	everywhere := apiKinds{env: e, config: k.config, cluster: "*"}
	require.Len(t, field(everywhere.get("/api/v1/pods:"+identity), "items"), 1)
	code, metadata := do(t, k.config, call{method: http.MethodGet, path: "/clusters/*/api/v1/pods", header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}}})
	require.Equal(t, http.StatusOK, code, "%s", metadata)
	require.Contains(t, string(metadata), `"name":"a"`)
	code, _ = provider.status(http.MethodGet, pods, "")
	require.Equal(t, http.StatusNotFound, code, "a provider does not have what it exports")

	t.Run("names", func(t *testing.T) { testCoreNames(provider.in(t), k.in(t)) })
	t.Run("rules", func(t *testing.T) { testCoreRules(provider.in(t), k.in(t)) })

	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/pods", "")
	k.eventually("pods are gone", func() bool {
		code, _ := k.status(http.MethodGet, pods, "")
		return code == http.StatusNotFound
	})
	k.get("/api/v1/namespaces/default/secrets/a")
}

// testCoreNames: what is built in keeps its names, and what clients take for something
// else is never the kind of an API.
func testCoreNames(provider, k apiKinds) {
	for name, schema := range map[string]string{
		"secrets": provider.coreSchema("secrets", "secret", "Secret"),
		"states":  provider.coreSchema("states", "state", "Status"),
	} {
		provider.export(name, schema)
		k.bind(name, provider, name)
		k.until(name, "InitialBindingCompleted", "False NamingConflicts")
	}
	require.NotContains(k.t, k.get("/api/v1/namespaces/default/secrets/a").Object, "spec")
}

// testCoreRules: roles, the provider's policies, quotas and namespaces know what is bound.
func testCoreRules(provider, k apiKinds) {
	const rules = "/apis/rbac.authorization.k8s.io/v1/"
	k.create(rules+"clusterroles", `{"metadata":{"name":"pods"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	k.create(rules+"clusterrolebindings", `{"metadata":{"name":"pods"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"pods"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	reader := k.as("user-1-token")
	reader.eventually("the reader may read", func() bool {
		code, _ := reader.status(http.MethodGet, pods+"/a", "")
		return code == http.StatusOK
	})
	code, says := reader.status(http.MethodDelete, pods+"/a", "")
	require.Equal(k.t, http.StatusForbidden, code)
	require.Contains(k.t, says, `in API group \"\"`)

	const named = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{}}`
	provider.create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"pods"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"validations":[{"expression":"object.apiVersion == 'v1' && request.kind.group == '' && request.resource.resource == 'pods'","message":"this is no pod"},{"expression":"object.metadata.name != 'denied'","message":"denied by policy"}]}}`)
	provider.create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"pods"},"spec":{"policyName":"pods","validationActions":["Deny"]}}`)
	k.eventually("the policy is in effect", func() bool {
		code, says = k.status(http.MethodPost, pods+"?dryRun=All", fmt.Sprintf(named, "denied"))
		return code == http.StatusUnprocessableEntity
	})
	require.Contains(k.t, says, "denied by policy")
	require.NotContains(k.t, says, "this is no pod")

	k.create("/api/v1/namespaces", `{"metadata":{"name":"few"}}`)
	k.create("/api/v1/namespaces/few/resourcequotas", `{"metadata":{"name":"few"},"spec":{"hard":{"count/pods":"1"}}}`)
	k.eventually("the quota counts", func() bool {
		return field(k.get("/api/v1/namespaces/few/resourcequotas/few"), "status", "used", "count/pods") == "0"
	})
	k.create("/api/v1/namespaces/few/pods", named, "one")
	// Admission counts by an informer, which may be behind.
	k.eventually("the quota is full", func() bool {
		code, says := k.status(http.MethodPost, "/api/v1/namespaces/few/pods", fmt.Sprintf(named, "two"))
		if code == http.StatusCreated {
			k.ask(http.StatusOK, http.MethodDelete, "/api/v1/namespaces/few/pods/two", "")
		}
		return code == http.StatusForbidden && strings.Contains(says, "exceeded quota")
	})
	k.ask(http.StatusOK, http.MethodDelete, "/api/v1/namespaces/few", "")
	k.eventually("the namespace is gone, and what was in it", func() bool {
		code, _ := k.status(http.MethodGet, "/api/v1/namespaces/few", "")
		return code == http.StatusNotFound
	})
	require.Len(k.t, field(k.get("/api/v1/pods"), "items"), 1)
}
