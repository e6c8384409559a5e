package events_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
)

// A repeated Event is not created again.
func ExampleRecord() {
	clienttest.ForExample(func(t testing.TB) {
		t.Helper()
		factory, err := client.NewFactory(clienttest.New(t, kinds.Scheme).ClientConfig())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer factory.CloseIdleConnections()
		scope := factory.Cluster(logicalcluster.NewPath("2x1k"))
		for range 2 {
			err := events.Record(context.Background(), scope, events.Event{
				About:     corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: "settings", UID: "u"},
				Component: "greeter", Type: corev1.EventTypeWarning, Reason: "Unknown", Message: "unknown user",
			}, "alice")
			if err != nil {
				fmt.Println(err)
			}
		}
		resource := client.DefineResource[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events")
		all, err := resource.InNamespace(scope, "default").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, e := range all.Items {
			fmt.Println(e.InvolvedObject.Name, e.Reason, e.Message)
		}
	})
	// Output: settings Unknown unknown user
}
