package clienttest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// Tests pass t instead of using ForExample.
func ExampleNew() {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		types := scheme.Scheme
		server := clienttest.New(t, types)
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "settings", Annotations: map[string]string{logicalcluster.AnnotationKey: "one"},
		}})
		factory, err := client.NewFactory(server.ClientConfig())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer factory.CloseIdleConnections()
		found, err := kinds.ConfigMaps.InNamespace(factory.Cluster(logicalcluster.NewPath("one")), "default").Get(t.Context(), "settings", metav1.GetOptions{})
		fmt.Println(found.Name, err)
		server.Fail(503)
		_, err = kinds.ConfigMaps.In(factory.Wildcard()).List(t.Context(), metav1.ListOptions{})
		fmt.Println(err != nil)
	})
	// Output:
	// settings <nil>
	// true
}

// Clients of a server without a listener call it within the process.
func ExampleInProcess() {
	server := clienttest.InProcess(scheme.Scheme)
	factory, err := client.NewFactory(server.ClientConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	found, err := kinds.ConfigMaps.In(factory.Wildcard()).List(context.Background(), metav1.ListOptions{})
	fmt.Println(len(found.Items), err)
	// Output: 0 <nil>
}
