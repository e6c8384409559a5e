package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

var (
	workspacesOf = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	bindingsOf   = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	exportsOf    = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apiexports"}
	schemasOf    = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiresourceschemas"}
)

func factory(t *testing.T, config *rest.Config) *client.Factory {
	t.Helper()
	f, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(f.CloseIdleConnections)
	return f
}

func path(p string) logicalcluster.Path { return logicalcluster.NewPath(p) }

// workspace creates a workspace on a shard, waits until it is Ready and returns
// the name of its logical cluster.
func workspace(t *testing.T, proxy *client.Factory, parent, name, shard string) string {
	t.Helper()
	in := kinds.Workspaces.In(proxy.Cluster(path(parent)))
	ws, err := in.Create(t.Context(), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: tenancyv1alpha1.WorkspaceSpec{Location: &tenancyv1alpha1.WorkspaceLocation{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		ws, err = in.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	}, testTimeout, 10*time.Millisecond, "workspace %s:%s becomes Ready", parent, name)
	return ws.Spec.Cluster
}

// watchConfigMaps runs an informer until the test ends.
func watchConfigMaps(t *testing.T, scope client.Scope, label string) *client.Informer[*corev1.ConfigMap] {
	t.Helper()
	informer := kinds.ConfigMaps.Informer(scope, client.InformerOptions[*corev1.ConfigMap]{LabelSelector: label})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := informer.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return informer
}

// configMap has the label that a test's informers select by.
func configMap(test, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"e2e": test}}}
}

func dynamicOf(f *client.Factory, cluster string) dynamic.Interface {
	d, err := f.Cluster(path(cluster)).Dynamic()
	if err != nil {
		panic(err) // of a configuration that works already
	}
	return d
}

func parse(text string, args ...any) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, text, args...), &obj.Object); err != nil {
		panic(err)
	}
	return obj
}
