package customresource

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/heap"
)

// TestChurn: definitions change and serving info is swept while objects are written, listed and watched in
// several logical clusters. Every response comes from the right logical cluster, and none fails.
func TestChurn(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{release: 30 * time.Millisecond})
	clusters := []string{"one", "two", "three"}
	for _, cluster := range clusters {
		s.CreateCRD(t, cluster, widgetCRD(nil))
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
		list := mustList(t, s.Dynamic(t, cluster).Resource(widgets), metav1.ListOptions{})
		require.Len(t, list.Items, objects)
	}
}

// TestDefinitionsAreAddedAndRemoved: definitions are rejected, created, used and deleted in several logical clusters
// concurrently, without leaks.
func TestDefinitionsAreAddedAndRemoved(t *testing.T) {
	s := startServer(t, serverOptions{release: 20 * time.Millisecond})
	const rounds = 8
	before := heap.InUse()
	var tenants sync.WaitGroup
	clusters := []string{"one", "two", "three", "four"}
	for _, cluster := range clusters {
		tenants.Go(func() {
			for round := range rounds {
				if !assert.NoError(t, s.comeAndGo(t, cluster, round), "%s, round %d", cluster, round) {
					return
				}
			}
		})
	}
	tenants.Wait()
	for _, cluster := range clusters {
		free, err := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgetCRD(nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		requireCondition(t, free, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionTrue, "NoConflicts")
		require.Eventually(t, func() bool { // the index watches storage
			left, err := s.sources.List(t.Context(), request.Cluster{Name: logicalcluster.Name(cluster)})
			return err == nil && len(left) == 0
		}, deadline, tick)
	}
	require.Eventually(t, func() bool {
		left, err := s.sources.Resolve(t.Context(), definitions.Lookup{Cluster: request.Cluster{Wildcard: true}, Resource: widgets.GroupResource(), Version: "v1"})
		return err == nil && left == nil
	}, deadline, tick)
	require.Eventually(t, func() bool { return s.opened.custom() == 0 && len(s.table.Definitions()) == 0 }, deadline, tick)
	// The rejected definitions have 32 MiB.
	require.Less(t, heap.InUse(), before+16<<20)
}

// comeAndGo has a definition rejected, corrected, used and deleted.
func (s *testServer) comeAndGo(t *testing.T, cluster string, round int) error {
	t.Helper()
	ctx := t.Context()
	client := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions()
	mistyped := widgetCRD(nil)
	mistyped.Name = fmt.Sprintf("widgets%d.exmaple.com", round)
	mistyped.Spec.Names.Plural = fmt.Sprintf("widgets%d", round)
	mistyped.Spec.Names.ListKind = strings.Repeat("L", 1<<20)
	if _, err := client.Create(ctx, mistyped, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		return fmt.Errorf("the mistyped definition returned %w", err)
	}
	crd, err := client.Create(ctx, widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{fmt.Sprintf("%s%d", cluster, round): {Type: "string"}}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return fmt.Errorf("not established: %v", crd.Status.Conditions)
	}
	if _, err := s.Dynamic(t, cluster).Resource(widgets).Namespace("default").Create(ctx, widget("a", map[string]any{}), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := client.Delete(ctx, crd.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, tick, deadline, true, func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, crd.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// writeWidgets creates objects and lists after each.
func (s *testServer) writeWidgets(t *testing.T, cluster string, objects int) {
	t.Helper()
	client := s.Dynamic(t, cluster).Resource(widgets).Namespace("default")
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

// changeDefinition adds the properties one after the other.
func (s *testServer) changeDefinition(ctx context.Context, t *testing.T, cluster string) {
	t.Helper()
	client := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions()
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

// watchWidgets watches the objects, resuming after each end, and misses none.
func (s *testServer) watchWidgets(ctx context.Context, t *testing.T, cluster string, objects int) {
	t.Helper()
	client := s.Dynamic(t, cluster).Resource(widgets).Namespace("default")
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
	assert.Equal(t, objects, seen, "events were lost")
}
