package customresource

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/request"
)

// An event is decoded and encoded once for all watches of a version store.
func TestEventsAreEncodedOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "one", widgetCRD(nil))
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	created := mustCreate(t, client, widget("a", map[string]any{"color": "red"}))

	ctx := genericapirequest.WithNamespace(request.WithClusterName(t.Context(), "one"), "")
	v, done := s.listerOf(t, "one")
	defer done()
	watcher, ok := v.(rest.Watcher)
	require.True(t, ok)
	// The storage has no history before its first watch.
	first, err := watcher.Watch(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	defer first.Stop()
	require.Equal(t, watch.Added, (<-first.ResultChan()).Type)
	now, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var watches []watch.Interface
	for _, namespace := range []string{"", "", "default"} {
		for _, label := range []labels.Selector{labels.Everything(), labels.Set{"kept": "no"}.AsSelector()} {
			w, err := watcher.Watch(genericapirequest.WithNamespace(ctx, namespace), &internalversion.ListOptions{
				ResourceVersion: now.GetResourceVersion(), LabelSelector: label,
			})
			require.NoError(t, err)
			defer w.Stop()
			watches = append(watches, w)
		}
	}
	created.SetLabels(map[string]string{"kept": "no"})
	updated, err := client.Update(t.Context(), created, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	for _, kind := range []watch.EventType{watch.Modified, watch.Deleted} {
		encoded := 0
		for i, w := range watches {
			var event watch.Event
			select {
			case event = <-w.ResultChan():
			case <-time.After(deadline):
				require.Fail(t, "no event")
			}
			if kind == watch.Modified && i%2 == 1 {
				require.Equal(t, watch.Added, event.Type, "it comes to be selected")
			} else {
				require.Equal(t, kind, event.Type, "%v", event.Object)
			}
			shared, ok := event.Object.(runtime.CacheableObject)
			require.True(t, ok, "%T", event.Object)
			require.NoError(t, shared.CacheEncode("json", func(obj runtime.Object, _ io.Writer) error {
				encoded++
				u, ok := obj.(*unstructured.Unstructured)
				require.True(t, ok)
				require.Equal(t, updated.Object["spec"], u.Object["spec"])
				require.Equal(t, widgets.GroupVersion().String(), u.GetAPIVersion())
				return nil
			}, io.Discard))
		}
		require.Equal(t, 1, encoded, "%s", kind)
	}
}
