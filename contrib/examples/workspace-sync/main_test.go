package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/client/shards"
)

// TestParse checks that errors of invalid flags contain a solution.
func TestParse(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	file := t.TempDir() + "/kubeconfig"
	require.NoError(t, os.WriteFile(file, []byte(`{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"s"}}],"clusters":[{"name":"s","cluster":{"server":"https://127.0.0.1:1"}}]}`), 0o600))
	for args, want := range map[string]string{
		"":                                     "set --kubeconfig",
		"--kubeconfig=x extra":                 "arguments are not permitted",
		"--kubeconfig=x":                       "set --shard-kubeconfigs",
		"--kubeconfig=x --shard-kubeconfigs=x": "must be the path of a workspace",
		"--kubeconfig=x --shard-kubeconfigs=x --from=root:*":                                            "must be the path of a workspace",
		"--kubeconfig=x --shard-kubeconfigs=x --from=root":                                              "select the workspaces that get copies",
		"--kubeconfig=x --shard-kubeconfigs=x --from=root --selector=a,,":                               "--selector: ",
		"--kubeconfig=x --shard-kubeconfigs=x --from=root --resources=configmaps":                       "must have the form <resource>.<version>[.<group>]",
		"--kubeconfig=x --shard-kubeconfigs=x --from=root --resources=":                                 "must have the form <resource>.<version>[.<group>]",
		"--kubeconfig=" + file + " --shard-kubeconfigs=" + file + " --from=root --type=a --name=A":      "Name must be valid",
		"--kubeconfig=/nowhere --shard-kubeconfigs=x --from=root --type=a":                              "--kubeconfig: ",
		"--kubeconfig=" + file + " --shard-kubeconfigs=/nowhere --from=root --type=a":                   "--shard-kubeconfigs: ",
		"--kubeconfig=" + file + " --shard-kubeconfigs=" + file + " --from=root --type=a --listen=x:-1": "--listen: ",
	} {
		o, err := parse(strings.Fields(args))
		if err == nil {
			err = run(t.Context(), o)
		}
		require.ErrorContains(t, err, want, args)
	}
}

// TestCopyOf checks that metadata of the server and labels of the source are not copied.
func TestCopyOf(t *testing.T) {
	from := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"a": "b"}, "status": map[string]any{"phase": "x"},
		"metadata": map[string]any{
			"namespace": "default", "name": "policy", "uid": "u", "resourceVersion": "7", "finalizers": []any{"x"},
			"labels":      map[string]any{copyLabel: "true", "team": "a"},
			"annotations": map[string]any{"kcp.io/cluster": "c", "internal.kcp.io/x": "y", corev1.LastAppliedConfigAnnotation: "{}", "note": "n"},
		},
	}}
	c := copyOf(from, "me")
	hash := c.GetAnnotations()[hashAnnotation]
	require.Len(t, hash, 16)
	require.Equal(t, map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"a": "b"},
		"metadata": map[string]any{
			"namespace": "default", "name": "policy", "labels": map[string]any{byLabel: "me", "team": "a"},
			"annotations": map[string]any{"note": "n", hashAnnotation: hash},
		},
	}, c.Object)
	require.Equal(t, c, copyOf(from, "me"))
	served := c.DeepCopy()
	served.SetUID("v")
	served.SetLabels(map[string]string{byLabel: "me", "team": "a", "others": "x"})
	require.True(t, contains(served.Object, c.Object), "fields that others add are ignored")
	delete(served.Object["data"].(map[string]any), "a") //nolint:forcetypeassert // as above
	require.False(t, contains(served.Object, c.Object))
	delete(from.Object["data"].(map[string]any), "a") //nolint:forcetypeassert // as above
	require.False(t, contains(c.Object, copyOf(from, "me").Object), "removed keys change the hash")
}

// TestUnknownWorkspace checks that copies are only deleted if their workspace is Ready and not selected. They must not be deleted if the
// workspace is unknown, e.g. because its shard was removed.
func TestUnknownWorkspace(t *testing.T) {
	server := clienttest.New(t, kinds.Scheme)
	in := map[string]string{logicalcluster.AnnotationKey: "c1"}
	server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "policy", Annotations: in, Labels: map[string]string{byLabel: "me"},
	}})
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	replicas, err := ring.New(ring.Config{Name: "me", Key: client.ByCluster, Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: "default"})
	require.NoError(t, err)
	o, err := parse(strings.Fields("--kubeconfig=x --shard-kubeconfigs=x --from=root:platform --type=root:universal --name=me --resources=configmaps.v1"))
	require.NoError(t, err)
	s, err := newSyncer(o, factory, shards.Static(map[string]*rest.Config{"blue": server.ClientConfig()}), replicas, prometheus.NewRegistry())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- replicas.Run(ctx, s.parts()...) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool { return s.ready() == nil }, time.Minute, time.Millisecond)

	_, err = s.reconcile(ctx, "c1")
	require.NoError(t, err)
	configMaps := kinds.ConfigMaps.InNamespace(factory.Cluster(logicalcluster.NewPath("c1")), "default")
	_, err = configMaps.Get(ctx, "policy", metav1.GetOptions{})
	require.NoError(t, err)

	seen := func(phase corev1alpha1.LogicalClusterPhaseType) {
		lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
			Name: "cluster", Annotations: map[string]string{logicalcluster.AnnotationKey: "c1", tenancyv1alpha1.LogicalClusterTypeAnnotationKey: "root:other"},
		}}
		lc.Status.Phase = phase
		server.Put(t, kinds.LogicalClusters.GroupVersionResource, lc)
		require.Eventually(t, func() bool {
			found, err := s.clusters.Lister().Get(client.Key{Cluster: "c1", Name: "cluster"})
			return err == nil && found.Status.Phase == phase
		}, time.Minute, time.Millisecond)
		_, err = s.reconcile(ctx, "c1")
		require.NoError(t, err)
	}
	seen(corev1alpha1.LogicalClusterPhaseInitializing)
	_, err = configMaps.Get(ctx, "policy", metav1.GetOptions{})
	require.NoError(t, err)
	seen(corev1alpha1.LogicalClusterPhaseReady)
	_, err = configMaps.Get(ctx, "policy", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

// TestManifests checks that manifests have no unknown fields, and that the program accepts their arguments.
func TestManifests(t *testing.T) {
	content, err := os.ReadFile("manifests.yaml")
	require.NoError(t, err)
	var deployment appsv1.Deployment
	into := []any{&corev1.ServiceAccount{}, &deployment, &corev1.Service{}, &policyv1.PodDisruptionBudget{}}
	documents := strings.Split(string(content), "\n---\n")
	require.Len(t, documents, len(into))
	for i, document := range documents {
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), into[i]), document)
	}
	_, err = parse(deployment.Spec.Template.Spec.Containers[0].Args)
	require.NoError(t, err)
}
