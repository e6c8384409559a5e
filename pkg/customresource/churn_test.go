package customresource

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// TestChurn: definitions change and serving info is swept while objects are
// written, listed and watched in several logical clusters; every request is
// answered from the right logical cluster, and none fails.
func TestChurn(t *testing.T) {
	s := startServer(t, startEtcd(t), serverOptions{release: 30 * time.Millisecond})
	clusters := []string{"one", "two", "three"}
	for _, cluster := range clusters {
		s.createCRD(t, cluster, widgetCRD(nil))
	}
	const objects = 40
	var writers, changers sync.WaitGroup
	ctx, stop := context.WithTimeout(t.Context(), 4*deadline)
	defer stop()
	for _, cluster := range clusters {
		writers.Go(func() { s.writeWidgets(t, cluster, objects) })
		changers.Go(func() { s.changeDefinition(ctx, t, cluster) })
		writers.Go(func() { s.watchWidgets(ctx, t, cluster, objects) })
	}
	writers.Wait()
	stop()
	changers.Wait()
	for _, cluster := range clusters {
		list, err := s.dynamic(t, cluster).Resource(widgets).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, objects)
	}
}

// writeWidgets creates objects and lists after each.
func (s *testServer) writeWidgets(t *testing.T, cluster string, objects int) {
	t.Helper()
	client := s.dynamic(t, cluster).Resource(widgets).Namespace("default")
	for i := range objects {
		_, err := client.Create(t.Context(), widget(fmt.Sprintf("w-%d", i), map[string]any{"color": cluster}), metav1.CreateOptions{})
		if !assert.NoError(t, err) {
			return
		}
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if !assert.NoError(t, err) || !assert.Len(t, list.Items, i+1) {
			return
		}
		for _, item := range list.Items {
			spec, _ := item.Object["spec"].(map[string]any)
			assert.Equal(t, cluster, spec["color"])
		}
	}
}

// changeDefinition gives the definition one property after the other.
func (s *testServer) changeDefinition(ctx context.Context, t *testing.T, cluster string) {
	t.Helper()
	client := s.crds(t, cluster).ApiextensionsV1().CustomResourceDefinitions()
	for i := 0; ctx.Err() == nil; i++ {
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			crd, err := client.Get(ctx, "widgets.example.com", metav1.GetOptions{})
			if err != nil {
				return err
			}
			crd.Spec = widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{fmt.Sprintf("extra%d", i%5): {Type: "string"}}).Spec
			_, err = client.Update(ctx, crd, metav1.UpdateOptions{})
			return err
		})
		if ctx.Err() == nil {
			assert.NoError(t, err)
		}
	}
}

// watchWidgets follows the objects over all ends of the watch, and misses none.
func (s *testServer) watchWidgets(ctx context.Context, t *testing.T, cluster string, objects int) {
	t.Helper()
	client := s.dynamic(t, cluster).Resource(widgets).Namespace("default")
	seen, version := 0, "0"
	if list, err := client.List(ctx, metav1.ListOptions{}); err == nil {
		seen, version = len(list.Items), list.GetResourceVersion()
	}
	for seen < objects && ctx.Err() == nil {
		w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if !assert.NoError(t, err) {
			return
		}
		for event := range w.ResultChan() {
			u := object(t, event)
			assert.Equal(t, cluster, u.GetAnnotations()["kcp.io/cluster"])
			assert.Equal(t, fmt.Sprintf("w-%d", seen), u.GetName())
			seen, version = seen+1, u.GetResourceVersion()
			if seen == objects {
				break
			}
		}
		w.Stop()
	}
	assert.Equal(t, objects, seen, "no event is lost")
}
