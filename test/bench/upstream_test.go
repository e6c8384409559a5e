package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestUpstreamServer runs informers of the library with ranges against the reference server, i.e.
// against upstream's code, which supports shard selectors by UID but not by logical cluster. The
// informers must contain the same objects with both.
func TestUpstreamServer(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", startReference(t))
	require.NoError(t, err)
	factory, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	configMaps := kinds.ConfigMaps.InNamespace(factory.Plain(), "default")
	put := func(name, cluster string) {
		t.Helper()
		_, err := configMaps.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for n := range 40 {
		put(fmt.Sprint("x", n), fmt.Sprint("c", n))
	}
	for key, by := range map[client.ShardKey]client.Filtered{client.ByUID: client.FilteredByServer, client.ByCluster: client.FilteredByClient} {
		for i := range 2 {
			t.Run(fmt.Sprintf("filtered by %s, part %d", by, i), func(t *testing.T) {
				ranges, err := client.PartOf(key, i, 2)
				require.NoError(t, err)
				informer := kinds.ConfigMaps.Informer(factory.Plain(), client.InformerOptions[*corev1.ConfigMap]{Ranges: ranges})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- informer.Run(ctx) }()
				defer func() {
					cancel()
					require.NoError(t, <-ended)
				}()
				checkContent := func() {
					t.Helper()
					require.EventuallyWithT(t, func(c *assert.CollectT) {
						all, err := configMaps.List(t.Context(), metav1.ListOptions{})
						require.NoError(c, err)
						want, have := map[client.Key]string{}, map[client.Key]string{}
						for i := range all.Items {
							if obj := &all.Items[i]; ranges.Contains(obj) {
								want[client.KeyOf(obj)] = obj.ResourceVersion
							}
						}
						for _, obj := range informer.Lister().List(nil) {
							have[client.KeyOf(obj)] = obj.ResourceVersion
						}
						require.Equal(c, want, have)
						require.Less(c, len(want), len(all.Items))
						require.Equal(c, by, informer.Filtered())
					}, time.Minute, 20*time.Millisecond)
				}
				checkContent()
				for n := range 4 {
					put(fmt.Sprintf("late-%d", n), fmt.Sprint("d", n))
				}
				checkContent()
				for n := range 4 {
					require.NoError(t, configMaps.Delete(t.Context(), fmt.Sprintf("late-%d", n), metav1.DeleteOptions{}))
				}
				checkContent()
				require.Equal(t, by == client.FilteredByClient, informer.Discarded() > 0)
			})
		}
	}
}
