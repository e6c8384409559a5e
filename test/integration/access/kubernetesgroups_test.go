package access

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	deployments = "/apis/apps/v1/namespaces/default/deployments"

	// deploymentVersions describes Deployments with a field that the Go type does not have, note.
	deploymentVersions = `[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},"schema":%s}]`
	deploymentSchema   = `{"type":"object","properties":{
		"spec":{"type":"object","properties":{
			"note":{"type":"string"},"replicas":{"type":"integer","format":"int32","default":1},"paused":{"type":"boolean"},
			"minReadySeconds":{"type":"integer"},"progressDeadlineSeconds":{"type":"integer"},"revisionHistoryLimit":{"type":"integer"},
			"selector":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
			"strategy":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
			"template":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
		"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`
	deploymentNames = `{"plural":"deployments","singular":"deployment","kind":"Deployment","listKind":"DeploymentList","shortNames":["deploy"],"categories":["all"]}`
)

// clientsetOf returns a client that writes protobuf.
func clientsetOf(k kit.WorkspaceClient) kubernetes.Interface {
	k.T.Helper()
	config := rest.CopyConfig(k.Config)
	config.Host += k.PathPrefix + "/clusters/" + k.ClusterName
	config.ContentType = runtime.ContentTypeProtobuf
	client := harness.Clientset(k.T, config, "")
	return client
}

// TestGroupsOfKubernetes checks that the groups of Kubernetes without a dot are defined like any other.
func TestGroupsOfKubernetes(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	k := kit.NewWorkspaceClient(e, "kubernetes-groups")
	k.Define("", "pods", "Pod", "v1")
	k.Define("batch", "cronjobs", "CronJob", "v1")
	k.Define("policy", "poddisruptionbudgets", "PodDisruptionBudget", "v1")
	k.Define("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "v2")
	k.Define("extensions", "ingresses", "Ingress", "v1beta1")

	client := clientsetOf(k)
	harness.Create(t, client.BatchV1().CronJobs("default"), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: batchv1.CronJobSpec{Schedule: "* * * * *"}})
	harness.Create(t, client.PolicyV1().PodDisruptionBudgets("default"), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	harness.Create(t, client.CoreV1().Pods("default"), pod)
	pod, err := client.CoreV1().Pods("default").Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"d","image":"i"}]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Len(t, pod.Spec.Containers, 2)
	require.Contains(t, k.Kubectl("get", "pods,cronjobs,poddisruptionbudgets"), "pod/a")
	everywhere := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}
	metadata := kit.RequireCode(t, k.Config, kit.Request{Method: http.MethodGet, Path: "/clusters/*/api/v1/pods", Header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}}}, http.StatusOK)
	require.Contains(t, string(metadata), `"name":"a"`)
	everywhere.RequireCode(http.StatusNotFound, http.MethodGet, "/api/v1/pods", "") // schemas may differ between logical clusters

	for name, message := range map[string]string{
		`"secrets.core"},"spec":{"group":"","scope":"Namespaced","names":{"plural":"secrets","kind":"Secret"}`:                                    "",
		`"widgets.core"},"spec":{"group":"core","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                                "at least one dot",
		`"widgets.other"},"spec":{"group":"other","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                              "at least one dot",
		`"widgets."},"spec":{"group":"","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                                        "metadata.name",
		`"ingresses.networking.k8s.io"},"spec":{"group":"networking.k8s.io","scope":"Namespaced","names":{"plural":"ingresses","kind":"Ingress"}`: "api-approved.kubernetes.io",
		`"widgets.apps.group.invalid"},"spec":{"group":"apps","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                  "metadata.name",
	} {
		body := `{"metadata":{"name":` + name + `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
		if message == "" { // built in
			require.Contains(t, kit.Condition(k.Create(kit.DefinitionsPath, "%s", body), "NamesAccepted"), "False")
			continue
		}
		require.Contains(t, k.RequireCode(http.StatusUnprocessableEntity, http.MethodPost, kit.DefinitionsPath, body), message)
	}
	k.RequireCode(http.StatusNotFound, http.MethodGet, "/apis/core/v1/namespaces/default/pods", "") // "core" is not the name of a group
	k.Patch(kit.DefinitionsPath+"/pods.core", `{"spec":{"names":{"shortNames":["po"]}}}`)
	k.RequireCode(http.StatusUnprocessableEntity, http.MethodPut, kit.DefinitionsPath+"/pods.core", `{"metadata":{"name":"pods.core"},"spec":{"group":"apps"}}`)
	k.Delete(kit.DefinitionsPath + "/pods.core")
	k.UntilDeleted(kit.PodsPath)
}

// TestDeploymentsAsData checks that kubectl and typed clients can use Deployments that are defined or bound in a workspace, as if
// they were built in.
func TestDeploymentsAsData(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("defined", func(t *testing.T) {
		k := kit.NewWorkspaceClient(e, "deployments").ForTest(t)
		k.Create(kit.DefinitionsPath, `{"metadata":{"name":"deployments.apps"},"spec":{"group":"apps","scope":"Namespaced","names":%s,"versions":`+deploymentVersions+`}}`,
			deploymentNames, `{"openAPIV3Schema":`+deploymentSchema+`}`)
		testDeployments(k)
		metadata := kit.RequireCode(t, k.Config, kit.Request{Method: http.MethodGet, Path: "/clusters/*/apis/apps/v1/deployments", Header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}}}, http.StatusOK)
		require.Contains(t, string(metadata), `"name":"web"`)
	})
	t.Run("bound", func(t *testing.T) {
		provider, k := kit.NewWorkspaceClient(e, "deployments-provider").ForTest(t), kit.NewWorkspaceClient(e, "deployments-consumer").ForTest(t)
		provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":"v1.deployments.apps"},"spec":{"group":"apps","scope":"Namespaced","names":%s,"versions":`+deploymentVersions+`}}`,
			deploymentNames, deploymentSchema)
		identity := provider.CreateExport("deployments", "v1.deployments.apps")
		k.BindReady("deployments", provider, "deployments")
		testDeployments(k)
		everywhere := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}.ForTest(t)
		require.Len(t, kit.Field(everywhere.Get("/apis/apps/v1/deployments:"+identity), "items"), 1)

		// Providers read and patch them through the virtual workspace of the export.
		seen := clientsetOf(provider.ThroughExport("deployments", k.ClusterName)).AppsV1().Deployments("default")
		k.Eventually("the virtual workspace contains the Deployment", func() bool {
			_, err := seen.Get(t.Context(), "web", metav1.GetOptions{})
			return err == nil
		})
		through, err := seen.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"seen","image":"i"}]}}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		require.Equal(t, "seen", through.Spec.Template.Spec.Containers[0].Name)
		require.Greater(t, len(through.Spec.Template.Spec.Containers), 1)
	})
}

// testDeployments leaves one Deployment, web.
func testDeployments(k kit.WorkspaceClient) {
	client := clientsetOf(k).AppsV1().Deployments("default")
	watcher, err := client.Watch(k.T.Context(), metav1.ListOptions{})
	require.NoError(k.T, err)
	k.T.Cleanup(watcher.Stop)
	require.Contains(k.T, k.Kubectl("create", "deployment", "web", "--image", "nginx:1", "--replicas", "2"), "created")
	event := <-watcher.ResultChan()
	require.Equal(k.T, watch.Added, event.Type)
	require.Equal(k.T, "nginx:1", event.Object.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image)
	k.Patch(deployments+"/web", `{"spec":{"note":"kept"}}`)

	testStrategicPatches(k)
	testProtobuf(k)

	require.Contains(k.T, k.Kubectl("scale", "deployment", "web", "--replicas", "3"), "scaled")
	scale, err := client.GetScale(k.T.Context(), "web", metav1.GetOptions{})
	require.NoError(k.T, err)
	require.EqualValues(k.T, 3, scale.Spec.Replicas)
	scale.Spec.Replicas = 4
	_, err = client.UpdateScale(k.T.Context(), "web", scale, metav1.UpdateOptions{})
	require.NoError(k.T, err)
	require.Contains(k.T, k.Kubectl("set", "image", "deployment/web", "nginx=nginx:2"), "updated")
	require.Contains(k.T, k.Kubectl("rollout", "restart", "deployment/web"), "restarted")
	playController(k)
	require.Contains(k.T, k.Kubectl("rollout", "status", "deployment/web", "--timeout", kit.Timeout.String()), "successfully rolled out")

	manifest := filepath.Join(k.T.TempDir(), "applied.json")
	for _, c := range []struct{ image, message string }{{"i:1", "created"}, {"i:2", "configured"}, {"i:2", "unchanged"}} {
		require.NoError(k.T, os.WriteFile(manifest, fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"applied"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":%q}]}}}}`, c.image), 0o600))
		require.Contains(k.T, k.Kubectl("apply", "-f", manifest), c.message)
	}
	require.NoError(k.T, client.Delete(k.T.Context(), "applied", metav1.DeleteOptions{}))
	web := k.Get(deployments + "/web")
	require.Equal(k.T, "kept", kit.Field(web, "spec", "note"), "a field that the Go type does not have must be preserved")
	require.EqualValues(k.T, 4, kit.Field(web, "spec", "replicas"))
}

// testStrategicPatches checks that lists are merged by their keys, based on the current object.
func testStrategicPatches(k kit.WorkspaceClient) {
	client := clientsetOf(k).AppsV1().Deployments("default")
	try := func(body string, subresources ...string) (*appsv1.Deployment, error) {
		return client.Patch(k.T.Context(), "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
	}
	patch := func(body string, subresources ...string) *appsv1.Deployment {
		k.T.Helper()
		patched, err := try(body, subresources...)
		require.NoError(k.T, err)
		return patched
	}
	web := patch(`{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"i"}]}}}}`)
	require.Len(k.T, web.Spec.Template.Spec.Containers, 2)
	web = patch(`{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}`)
	require.Len(k.T, web.Spec.Template.Spec.Containers, 1)
	web = patch(`{"status":{"conditions":[{"type":"Progressing","status":"True"}]},"spec":{"replicas":9}}`, "status")
	require.Len(k.T, web.Status.Conditions, 1)
	require.EqualValues(k.T, 2, *web.Spec.Replicas, "a patch of the status must not change the spec")
	require.Equal(k.T, "b", patch(`{"metadata":{"labels":{"a":"b"}}}`).Labels["a"])
	_, err := try(`{"metadata":{"resourceVersion":"` + web.ResourceVersion + `","labels":{"a":"c"}}}`)
	require.True(k.T, apierrors.IsConflict(err), "%v", err)
	since := patch(`{"metadata":{"creationTimestamp":"2020-01-01T00:00:00Z"}}`)
	require.Equal(k.T, web.CreationTimestamp, since.CreationTimestamp, "the creation timestamp must not change")
	_, err = try(`{"spec":{"replicas":"many"}}`)
	require.True(k.T, apierrors.IsInvalid(err), "%v", err)
	for body, code := range map[string]int{`no patch`: http.StatusBadRequest, `{"metadata":null}`: http.StatusBadRequest, `{"spec":{"template":{"spec":{"containers":[{"image":"i"}]}}}}`: http.StatusUnprocessableEntity} {
		_, err = try(body)
		var status apierrors.APIStatus
		require.ErrorAs(k.T, err, &status)
		require.EqualValues(k.T, code, status.Status().Code, "%s: %v", body, err)
	}
	_, err = client.Patch(k.T.Context(), "none", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	require.True(k.T, apierrors.IsNotFound(err), "%v", err)
	tried, err := client.Patch(k.T.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "me"})
	require.NoError(k.T, err)
	require.EqualValues(k.T, 7, *tried.Spec.Replicas)
	require.EqualValues(k.T, 2, *harness.Get(k.T, client, "web").Spec.Replicas, "a dry run must not change the object")
}

// testProtobuf checks request bodies in protobuf, and responses to clients that accept nothing else.
func testProtobuf(k kit.WorkspaceClient) {
	client := clientsetOf(k).AppsV1().Deployments("default")
	made := harness.Create(k.T, client, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Spec: appsv1.DeploymentSpec{Paused: true}})
	require.EqualValues(k.T, 1, *made.Spec.Replicas, "by default")
	made.Labels = map[string]string{"a": "b"}
	_, err := client.Update(k.T.Context(), made, metav1.UpdateOptions{})
	require.NoError(k.T, err)
	only := harness.In(k.Config, k.ClusterName)
	only.ContentType, only.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	withoutRetries := harness.Clientset(k.T, only, "")
	in := withoutRetries.AppsV1().Deployments("default")
	list := harness.List(k.T, in, metav1.ListOptions{LabelSelector: "a=b"})
	require.NotEmpty(k.T, list.Items)
	got := harness.Get(k.T, in, "made")
	require.True(k.T, got.Spec.Paused)
	got, err = in.Patch(k.T.Context(), "made", types.StrategicMergePatchType, []byte(`{"spec":{"paused":null}}`), metav1.PatchOptions{})
	require.NoError(k.T, err)
	require.False(k.T, got.Spec.Paused)
	_, err = in.Get(k.T.Context(), "none", metav1.GetOptions{})
	require.True(k.T, apierrors.IsNotFound(err), "%v", err)
	response := kit.RequireCode(k.T, only, kit.Request{Method: http.MethodGet, Path: deployments + "/made", Header: http.Header{"Accept": {runtime.ContentTypeProtobuf}}}, http.StatusOK)
	require.True(k.T, strings.HasPrefix(string(response), "k8s\x00"), "%q", response)
	kit.RequireCode(k.T, only, kit.Request{Method: http.MethodPost, Path: deployments, Body: "k8s\x00no", Header: http.Header{"Content-Type": {runtime.ContentTypeProtobuf}}}, http.StatusBadRequest)
	require.NoError(k.T, in.Delete(k.T.Context(), "made", metav1.DeleteOptions{}))
}

// playController sets the status that the Kubernetes controller sets when all pods are running.
func playController(k kit.WorkspaceClient) {
	k.T.Helper()
	client := clientsetOf(k).AppsV1().Deployments("default")
	require.NoError(k.T, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		web, err := client.Get(k.T.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		n := *web.Spec.Replicas
		web.Status = appsv1.DeploymentStatus{ObservedGeneration: web.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
		_, err = client.UpdateStatus(k.T.Context(), web, metav1.UpdateOptions{})
		return err
	}))
}
