package integration

import (
	"errors"
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
)

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	deployments = "/apis/apps/v1/namespaces/default/deployments"

	// deploymentVersions describes Deployments with one field more than the Go type has.
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

// clientset is a typed client of the logical cluster, that writes protobuf.
func (k apiKinds) clientset() kubernetes.Interface {
	k.t.Helper()
	config := rest.CopyConfig(k.config)
	config.Host += k.view + "/clusters/" + k.cluster
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	require.NoError(k.t, err)
	return client
}

// define makes a definition of anything.
func (k apiKinds) define(group, plural, kind, version string) {
	k.t.Helper()
	name := plural + "." + group
	if group == "" {
		name = plural + ".core"
	}
	made := k.create(definitions, `{"metadata":{"name":%q},"spec":{"group":%q,"scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q},"versions":[{"name":%q,"served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		name, group, plural, strings.ToLower(kind), kind, version)
	require.Equal(k.t, "True InitialNamesAccepted", condition(made, "Established"))
}

// TestGroupsOfKubernetes: the groups of Kubernetes without a dot are defined as all others.
func TestGroupsOfKubernetes(t *testing.T) {
	e := newEnv(t, two.Get(t))
	k := newAPIKinds(e, "kubernetes-groups")
	k.define("", "pods", "Pod", "v1")
	k.define("batch", "cronjobs", "CronJob", "v1")
	k.define("policy", "poddisruptionbudgets", "PodDisruptionBudget", "v1")
	k.define("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "v2")
	k.define("extensions", "ingresses", "Ingress", "v1beta1")

	client := k.clientset()
	_, err := client.BatchV1().CronJobs("default").Create(t.Context(), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: batchv1.CronJobSpec{Schedule: "* * * * *"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	_, err = client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	pod, err = client.CoreV1().Pods("default").Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"d","image":"i"}]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Len(t, pod.Spec.Containers, 2)
	require.Contains(t, k.kubectl("get", "pods,cronjobs,poddisruptionbudgets"), "pod/a")
	everywhere := apiKinds{env: e, config: k.config, cluster: "*"}
	code, metadata := do(t, k.config, call{method: http.MethodGet, path: "/clusters/*/api/v1/pods", header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}}})
	require.Equal(t, http.StatusOK, code, "%s", metadata)
	require.Contains(t, string(metadata), `"name":"a"`)
	code, _ = everywhere.status(http.MethodGet, "/api/v1/pods", "")
	require.Equal(t, http.StatusNotFound, code, "schemas may differ")

	for name, says := range map[string]string{
		`"secrets.core"},"spec":{"group":"","scope":"Namespaced","names":{"plural":"secrets","kind":"Secret"}`:                                    "",
		`"widgets.core"},"spec":{"group":"core","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                                "at least one dot",
		`"widgets.other"},"spec":{"group":"other","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                              "at least one dot",
		`"widgets."},"spec":{"group":"","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                                        "metadata.name",
		`"ingresses.networking.k8s.io"},"spec":{"group":"networking.k8s.io","scope":"Namespaced","names":{"plural":"ingresses","kind":"Ingress"}`: "api-approved.kubernetes.io",
		`"widgets.apps.group.invalid"},"spec":{"group":"apps","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"}`:                  "metadata.name",
	} {
		body := `{"metadata":{"name":` + name + `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
		if says == "" { // built in
			require.Contains(t, condition(k.create(definitions, "%s", body), "NamesAccepted"), "False")
			continue
		}
		code, answer := k.status(http.MethodPost, definitions, body)
		require.Equal(t, http.StatusUnprocessableEntity, code, "%s: %s", name, answer)
		require.Contains(t, answer, says)
	}
	code, _ = k.status(http.MethodGet, "/apis/core/v1/namespaces/default/pods", "")
	require.Equal(t, http.StatusNotFound, code, `"core" is no group`)
	k.ask(http.StatusOK, http.MethodPatch, definitions+"/pods.core", `{"spec":{"names":{"shortNames":["po"]}}}`)
	code, answer := k.status(http.MethodPut, definitions+"/pods.core", `{"metadata":{"name":"pods.core"},"spec":{"group":"apps"}}`)
	require.Equal(t, http.StatusUnprocessableEntity, code, answer)
	k.ask(http.StatusOK, http.MethodDelete, definitions+"/pods.core", "")
	k.eventually("pods are gone with their definition", func() bool {
		code, _ := k.status(http.MethodGet, pods, "")
		return code == http.StatusNotFound
	})
}

// TestDeploymentsAsData: a workspace holds Deployments, defined or bound, for kubectl and
// typed clients as where they are built in.
func TestDeploymentsAsData(t *testing.T) {
	e := newEnv(t, two.Get(t))
	t.Run("defined", func(t *testing.T) {
		k := newAPIKinds(e, "deployments").in(t)
		k.create(definitions, `{"metadata":{"name":"deployments.apps"},"spec":{"group":"apps","scope":"Namespaced","names":%s,"versions":`+deploymentVersions+`}}`,
			deploymentNames, `{"openAPIV3Schema":`+deploymentSchema+`}`)
		testDeployments(k)
		code, metadata := do(t, k.config, call{method: http.MethodGet, path: "/clusters/*/apis/apps/v1/deployments", header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}}})
		require.Equal(t, http.StatusOK, code, "%s", metadata)
		require.Contains(t, string(metadata), `"name":"web"`)
	})
	t.Run("bound", func(t *testing.T) {
		provider, k := newAPIKinds(e, "deployments-provider").in(t), newAPIKinds(e, "deployments-consumer").in(t)
		provider.create(apisV1+"apiresourceschemas", `{"metadata":{"name":"v1.deployments.apps"},"spec":{"group":"apps","scope":"Namespaced","names":%s,"versions":`+deploymentVersions+`}}`,
			deploymentNames, deploymentSchema)
		identity := provider.export("deployments", "v1.deployments.apps")
		k.bind("deployments", provider, "deployments")
		k.until("deployments", "Ready", "True <nil>")
		testDeployments(k)
		everywhere := apiKinds{env: e, config: k.config, cluster: "*"}.in(t)
		require.Len(t, field(everywhere.get("/apis/apps/v1/deployments:"+identity), "items"), 1)

		// Providers see and patch them through the view of the export.
		seen := provider.through("deployments", k.cluster).clientset().AppsV1().Deployments("default")
		k.eventually("the view shows it", func() bool {
			_, err := seen.Get(t.Context(), "web", metav1.GetOptions{})
			return err == nil
		})
		through, err := seen.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"seen","image":"i"}]}}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		require.Equal(t, "seen", through.Spec.Template.Spec.Containers[0].Name)
		require.Greater(t, len(through.Spec.Template.Spec.Containers), 1)
	})
}

// testDeployments: there is one Deployment in the end, web.
func testDeployments(k apiKinds) {
	client := k.clientset().AppsV1().Deployments("default")
	watcher, err := client.Watch(k.t.Context(), metav1.ListOptions{})
	require.NoError(k.t, err)
	k.t.Cleanup(watcher.Stop)
	require.Contains(k.t, k.kubectl("create", "deployment", "web", "--image", "nginx:1", "--replicas", "2"), "created")
	event := <-watcher.ResultChan()
	require.Equal(k.t, watch.Added, event.Type)
	require.Equal(k.t, "nginx:1", event.Object.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image)
	k.ask(http.StatusOK, http.MethodPatch, deployments+"/web", `{"spec":{"note":"kept"}}`)

	testStrategicPatches(k)
	testProtobuf(k)

	require.Contains(k.t, k.kubectl("scale", "deployment", "web", "--replicas", "3"), "scaled")
	scale, err := client.GetScale(k.t.Context(), "web", metav1.GetOptions{})
	require.NoError(k.t, err)
	require.EqualValues(k.t, 3, scale.Spec.Replicas)
	scale.Spec.Replicas = 4
	_, err = client.UpdateScale(k.t.Context(), "web", scale, metav1.UpdateOptions{})
	require.NoError(k.t, err)
	require.Contains(k.t, k.kubectl("set", "image", "deployment/web", "nginx=nginx:2"), "updated")
	require.Contains(k.t, k.kubectl("rollout", "restart", "deployment/web"), "restarted")
	k.playController()
	require.Contains(k.t, k.kubectl("rollout", "status", "deployment/web", "--timeout", testTimeout.String()), "successfully rolled out")

	manifest := filepath.Join(k.t.TempDir(), "applied.json")
	for _, c := range []struct{ image, says string }{{"i:1", "created"}, {"i:2", "configured"}, {"i:2", "unchanged"}} {
		require.NoError(k.t, os.WriteFile(manifest, fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"applied"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":%q}]}}}}`, c.image), 0o600))
		require.Contains(k.t, k.kubectl("apply", "-f", manifest), c.says)
	}
	require.NoError(k.t, client.Delete(k.t.Context(), "applied", metav1.DeleteOptions{}))
	web := k.get(deployments + "/web")
	require.Equal(k.t, "kept", field(web, "spec", "note"), "the Go type does not know it")
	require.EqualValues(k.t, 4, field(web, "spec", "replicas"))
}

// testStrategicPatches: lists are merged by their keys, of what is there at that moment.
func testStrategicPatches(k apiKinds) {
	client := k.clientset().AppsV1().Deployments("default")
	patch := func(body string, subresources ...string) (*appsv1.Deployment, error) {
		return client.Patch(k.t.Context(), "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
	}
	web, err := patch(`{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"i"}]}}}}`)
	require.NoError(k.t, err)
	require.Len(k.t, web.Spec.Template.Spec.Containers, 2)
	web, err = patch(`{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}`)
	require.NoError(k.t, err)
	require.Len(k.t, web.Spec.Template.Spec.Containers, 1)
	web, err = patch(`{"status":{"conditions":[{"type":"Progressing","status":"True"}]},"spec":{"replicas":9}}`, "status")
	require.NoError(k.t, err)
	require.Len(k.t, web.Status.Conditions, 1)
	require.EqualValues(k.t, 2, *web.Spec.Replicas, "the status only")
	stale := web.ResourceVersion
	again, err := patch(`{"metadata":{"labels":{"a":"b"}}}`)
	require.NoError(k.t, err)
	require.Equal(k.t, "b", again.Labels["a"])
	_, err = patch(`{"metadata":{"resourceVersion":"` + stale + `","labels":{"a":"c"}}}`)
	require.True(k.t, apierrors.IsConflict(err), "%v", err)
	since, err := patch(`{"metadata":{"creationTimestamp":"2020-01-01T00:00:00Z"}}`)
	require.NoError(k.t, err)
	require.Equal(k.t, web.CreationTimestamp, since.CreationTimestamp, "it cannot be patched")
	_, err = patch(`{"spec":{"replicas":"many"}}`)
	require.True(k.t, apierrors.IsInvalid(err), "%v", err)
	for body, code := range map[string]int{`no patch`: http.StatusBadRequest, `{"metadata":null}`: http.StatusBadRequest, `{"spec":{"template":{"spec":{"containers":[{"image":"i"}]}}}}`: http.StatusUnprocessableEntity} {
		_, err = patch(body)
		require.Equal(k.t, code, int(statusOf(err).Code), "%s: %v", body, err)
	}
	_, err = client.Patch(k.t.Context(), "none", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	require.True(k.t, apierrors.IsNotFound(err), "%v", err)
	tried, err := client.Patch(k.t.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "me"})
	require.NoError(k.t, err)
	require.EqualValues(k.t, 7, *tried.Spec.Replicas)
	web, err = client.Get(k.t.Context(), "web", metav1.GetOptions{})
	require.NoError(k.t, err)
	require.EqualValues(k.t, 2, *web.Spec.Replicas, "it was a dry run")
}

// statusOf is what a server answered.
func statusOf(err error) metav1.Status {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return metav1.Status{}
	}
	return status.Status()
}

// testProtobuf: bodies are protobuf, and answers where nothing else is taken.
func testProtobuf(k apiKinds) {
	client := k.clientset().AppsV1().Deployments("default")
	made, err := client.Create(k.t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Spec: appsv1.DeploymentSpec{Paused: true}}, metav1.CreateOptions{})
	require.NoError(k.t, err)
	require.EqualValues(k.t, 1, *made.Spec.Replicas, "by default")
	made.Labels = map[string]string{"a": "b"}
	_, err = client.Update(k.t.Context(), made, metav1.UpdateOptions{})
	require.NoError(k.t, err)
	only := rest.CopyConfig(k.config)
	only.Host += "/clusters/" + k.cluster
	only.ContentType, only.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	strict, err := kubernetes.NewForConfig(only)
	require.NoError(k.t, err)
	in := strict.AppsV1().Deployments("default")
	list, err := in.List(k.t.Context(), metav1.ListOptions{LabelSelector: "a=b"})
	require.NoError(k.t, err)
	require.NotEmpty(k.t, list.Items)
	got, err := in.Get(k.t.Context(), "made", metav1.GetOptions{})
	require.NoError(k.t, err)
	require.True(k.t, got.Spec.Paused)
	got, err = in.Patch(k.t.Context(), "made", types.StrategicMergePatchType, []byte(`{"spec":{"paused":null}}`), metav1.PatchOptions{})
	require.NoError(k.t, err)
	require.False(k.t, got.Spec.Paused)
	_, err = in.Get(k.t.Context(), "none", metav1.GetOptions{})
	require.True(k.t, apierrors.IsNotFound(err), "%v", err)
	code, answer := do(k.t, only, call{method: http.MethodGet, path: deployments + "/made", header: http.Header{"Accept": {runtime.ContentTypeProtobuf}}})
	require.Equal(k.t, http.StatusOK, code)
	require.True(k.t, strings.HasPrefix(string(answer), "k8s\x00"), "%q", answer)
	code, answer = do(k.t, only, call{method: http.MethodPost, path: deployments, body: "k8s\x00no", header: http.Header{"Content-Type": {runtime.ContentTypeProtobuf}}})
	require.Equal(k.t, http.StatusBadRequest, code, "%s", answer)
	require.NoError(k.t, in.Delete(k.t.Context(), "made", metav1.DeleteOptions{}))
}

// playController does what Kubernetes' controller does when all pods run.
func (k apiKinds) playController() {
	k.t.Helper()
	client := k.clientset().AppsV1().Deployments("default")
	require.NoError(k.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		web, err := client.Get(k.t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		n := *web.Spec.Replicas
		web.Status = appsv1.DeploymentStatus{ObservedGeneration: web.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
		_, err = client.UpdateStatus(k.t.Context(), web, metav1.UpdateOptions{})
		return err
	}))
}
