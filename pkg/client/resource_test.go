package client_test

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestResourceOf follows a kind that is determined at run time: objects have its Go type.
func TestResourceOf(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("one", "default", "a", value("x")))
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	resource, err := client.ResourceOf(kinds.Scheme, kind, "configmaps", client.WithProtobuf())
	require.NoError(t, err)
	informer := resource.Informer(factory.Wildcard(), client.InformerOptions[client.Object]{})
	runSynced(t, informer)
	held, err := informer.Lister().Cluster("one").Get("default", "a")
	require.NoError(t, err)
	require.Equal(t, "x", held.(*corev1.ConfigMap).Data["v"])
	read, err := resource.InNamespace(factory.Cluster(logicalcluster.NewPath("one")), "default").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, held.GetUID(), read.(*corev1.ConfigMap).UID)

	_, err = client.ResourceOf(kinds.Scheme, corev1.SchemeGroupVersion.WithKind("None"), "nones")
	require.Error(t, err)
	_, err = client.ResourceOf(kinds.Scheme, corev1.SchemeGroupVersion.WithKind("ListOptions"), "options")
	require.Error(t, err)
}

// TestSchemes: a scheme without the types of the resource is an error when the resource is defined.
func TestSchemes(t *testing.T) {
	gv := schema.GroupVersion{Group: "example.io", Version: "v1"}
	require.Panics(t, func() {
		client.DefineResource[Widget, WidgetList](gv, "widgets", client.WithScheme(runtime.NewScheme()))
	})
	other := runtime.NewScheme()
	other.AddKnownTypes(schema.GroupVersion{Group: "example.io", Version: "v2"}, &Widget{}, &WidgetList{})
	require.Panics(t, func() { client.DefineResource[Widget, WidgetList](gv, "widgets", client.WithScheme(other)) })
	client.DefineResource[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "configmaps", client.WithScheme(kinds.Scheme), client.WithProtobuf())
}
