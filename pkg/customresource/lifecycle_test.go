package customresource

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/customresourcetest"
)

func nextEvent(t *testing.T, w watch.Interface) (watch.Event, bool) {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		return event, ok
	case <-time.After(deadline):
		require.Fail(t, "no event in time")
		return watch.Event{}, false
	}
}

func object(t *testing.T, event watch.Event) *unstructured.Unstructured {
	t.Helper()
	u, ok := event.Object.(*unstructured.Unstructured)
	require.True(t, ok, "%#v", event.Object)
	return u
}

func TestWatchIsolationAndSchemaChange(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one", "two")
	one, two := s.Dynamic(t, "one").Resource(widgets).Namespace("default"), s.Dynamic(t, "two").Resource(widgets).Namespace("default")
	w1 := mustWatch(t, one, metav1.ListOptions{})
	w2 := mustWatch(t, two, metav1.ListOptions{})

	mustCreate(t, two, widget("b", map[string]any{"size": int64(1)}))
	created := mustCreate(t, one, widget("a", map[string]any{"size": int64(1)}))
	event, _ := nextEvent(t, w1)
	require.Equal(t, "a", object(t, event).GetName())
	event, _ = nextEvent(t, w2)
	require.Equal(t, "b", object(t, event).GetName())

	// A change in one logical cluster ends only its watches.
	crds := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions()
	crd, err := crds.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	crd.Spec = widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{
		"shape": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"round"`)}},
	}).Spec
	_, err = crds.Update(t.Context(), crd, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, open := nextEvent(t, w1)
	require.False(t, open)

	resumed := mustWatch(t, one, metav1.ListOptions{ResourceVersion: created.GetResourceVersion()})
	created.SetLabels(map[string]string{"new": "label"})
	updated := mustUpdate(t, one, created)
	require.Equal(t, "round", updated.Object["spec"].(map[string]any)["shape"])
	event, _ = nextEvent(t, resumed)
	require.Equal(t, watch.Modified, event.Type)
	require.Equal(t, updated.Object, object(t, event).Object)

	require.NoError(t, two.Delete(t.Context(), "b", metav1.DeleteOptions{}))
	event, _ = nextEvent(t, w2)
	require.Equal(t, watch.Deleted, event.Type)
	require.NotContains(t, object(t, event).Object["spec"], "shape")
}

func TestWatchWithSelectableField(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	// A watch without a version starts with the state of some later time, as in kube-apiserver.
	none := mustList(t, client, metav1.ListOptions{})
	from := none.GetResourceVersion()
	w := mustWatch(t, client, metav1.ListOptions{FieldSelector: "spec.color=red", ResourceVersion: from})
	all := mustWatch(t, client, metav1.ListOptions{ResourceVersion: from})
	paint := func(u *unstructured.Unstructured, color string) *unstructured.Unstructured {
		require.NoError(t, unstructured.SetNestedField(u.Object, color, "spec", "color"))
		u = mustUpdate(t, client, u)
		return u
	}
	u := mustCreate(t, client, widget("a", map[string]any{"color": "green"}))
	u = paint(u, "red")
	u = paint(u, "green")
	event, _ := nextEvent(t, w)
	require.Equal(t, watch.Added, event.Type)
	event, _ = nextEvent(t, w)
	require.Equal(t, watch.Deleted, event.Type)
	color, _, _ := unstructured.NestedString(object(t, event).Object, "spec", "color")
	require.Equal(t, "red", color, "the event must contain the last matching state")
	require.Equal(t, u.GetResourceVersion(), object(t, event).GetResourceVersion())
	for _, want := range []string{"green", "red", "green"} {
		event, _ = nextEvent(t, all)
		color, _, _ = unstructured.NestedString(object(t, event).Object, "spec", "color")
		require.Equal(t, want, color)
	}
}

func TestWatchList(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	mustCreate(t, client, widget("a", map[string]any{"size": int64(1)}))
	w := mustWatch(t, client, metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	event, _ := nextEvent(t, w)
	require.Equal(t, watch.Added, event.Type)
	event, _ = nextEvent(t, w)
	require.Equal(t, watch.Bookmark, event.Type)
	require.Equal(t, "true", object(t, event).GetAnnotations()[metav1.InitialEventsAnnotationKey])
	require.Equal(t, "Widget", object(t, event).GetKind())
}

func TestDeleteAndRecreate(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	for _, cluster := range []string{"one", "two"} {
		s.CreateCRD(t, cluster, widgetCRD(nil))
		mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
	}
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	held := widget("held", map[string]any{"size": int64(1)})
	held.SetFinalizers([]string{"example.com/hold"})
	mustCreate(t, client, held)
	w := mustWatch(t, client, metav1.ListOptions{FieldSelector: "metadata.name=held"})
	_, _ = nextEvent(t, w)

	crds := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions()
	require.NoError(t, crds.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	_, err := client.Create(t.Context(), widget("late", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.Eventually(t, func() bool {
		_, err := client.Get(t.Context(), "a", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, deadline, tick)
	event, _ := nextEvent(t, w)
	require.Equal(t, watch.Modified, event.Type)
	require.NotNil(t, object(t, event).GetDeletionTimestamp())
	require.Eventually(t, func() bool {
		crd, err := crds.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		require.NoError(t, err)
		c := apihelpers.FindCRDCondition(crd, apiextensionsv1.Terminating)
		return c != nil && c.Status == apiextensionsv1.ConditionTrue && c.Reason == "InstanceDeletionInProgress"
	}, deadline, tick)

	freed := object(t, event).DeepCopy()
	freed.SetFinalizers(nil)
	mustUpdate(t, client, freed)
	require.Eventually(t, func() bool {
		_, err := crds.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, deadline, tick)
	require.Eventually(t, func() bool {
		_, err = client.List(t.Context(), metav1.ListOptions{})
		return apierrors.IsNotFound(err)
	}, deadline, tick)

	// A different schema with the same name, now cluster-scoped.
	other := widgetCRD(nil)
	other.Spec.Scope = apiextensionsv1.ClusterScoped
	s.CreateCRD(t, "one", other)
	unscoped := s.Dynamic(t, "one").Resource(widgets)
	list := mustList(t, unscoped, metav1.ListOptions{})
	require.Empty(t, list.Items)
	mustCreate(t, unscoped, widget("a", map[string]any{"size": int64(1)}))
	_, err = client.Get(t.Context(), "a", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "namespaced paths must not be found: %v", err)
	list = mustList(t, s.Dynamic(t, "two").Resource(widgets), metav1.ListOptions{})
	require.Len(t, list.Items, 1, "objects of other logical clusters must remain")

	require.NoError(t, s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	require.Eventually(t, func() bool {
		_, err := crds.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, deadline, tick)
	s.CreateCRD(t, "one", other)
	list = mustList(t, unscoped, metav1.ListOptions{})
	require.Empty(t, list.Items, "deletion of a collection of definitions must delete their objects")
}

// TestDeletedEvents: watches receive the deletions of all instances of a deleted definition, and then end.
func TestDeletedEvents(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		mustCreate(t, client, widget(name, map[string]any{"size": int64(1)}))
	}
	w := mustWatch(t, client, metav1.ListOptions{})
	for range 6 { // a watch without a version may start with a later state
		event, _ := nextEvent(t, w)
		require.Equal(t, watch.Added, event.Type)
	}
	s.DeleteCRD(t, "one", "widgets.example.com")
	for range 6 {
		event, _ := nextEvent(t, w)
		require.Equal(t, watch.Deleted, event.Type)
	}
	_, open := nextEvent(t, w)
	require.False(t, open)
}

func TestRestart(t *testing.T) {
	t.Parallel()
	data := customresourcetest.NewData(t)
	s := startServer(t, serverOptions{data: data})
	for _, cluster := range []string{"one", "two"} {
		s.CreateCRD(t, cluster, widgetCRD(nil))
		mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("a", map[string]any{"color": cluster}))
	}
	s.Stop()
	s = startServer(t, serverOptions{data: data})
	for _, cluster := range []string{"one", "two"} {
		for _, rv := range []string{"", "0"} {
			list := mustList(t, s.Dynamic(t, cluster).Resource(widgets), metav1.ListOptions{ResourceVersion: rv})
			require.Len(t, list.Items, 1)
			color, _, _ := unstructured.NestedString(list.Items[0].Object, "spec", "color")
			require.Equal(t, cluster, color)
		}
	}
	s.DeleteCRD(t, "one", "widgets.example.com")
}

// TestTwoServers: a definition written by another server of the shard is served before its watch event
// arrives.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	data := customresourcetest.NewData(t)
	a, b := startServer(t, serverOptions{data: data}), startServer(t, serverOptions{data: data})
	for _, cluster := range []string{"one", "two", "three", "four"} {
		a.CreateCRD(t, cluster, widgetCRD(nil))
		mustCreate(t, b.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
		list := mustList(t, a.Dynamic(t, cluster).Resource(widgets), metav1.ListOptions{})
		require.Len(t, list.Items, 1)
	}
}

// TestTwoServersAcceptOneName: if two servers of the shard accept the same names for two definitions at the
// same time, one keeps them.
func TestTwoServersAcceptOneName(t *testing.T) {
	t.Parallel()
	data := customresourcetest.NewData(t)
	servers := []*testServer{startServer(t, serverOptions{data: data}), startServer(t, serverOptions{data: data})}
	for _, cluster := range []string{"one", "two", "three", "four", "five", "six"} {
		var creators sync.WaitGroup
		for i, s := range servers {
			crd := widgetCRD(nil)
			crd.Spec.Names.Plural = fmt.Sprintf("widgets%d", i)
			crd.Name = crd.Spec.Names.Plural + ".example.com"
			client := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions()
			creators.Go(func() {
				_, err := client.Create(t.Context(), crd, metav1.CreateOptions{})
				assert.NoError(t, err)
			})
		}
		creators.Wait()
		servers[0].requireOneEstablished(t, cluster, len(servers))
	}
}

func TestUnusedServingInfoIsReleased(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{release: 20 * time.Millisecond})
	s.CreateCRD(t, "one", widgetCRD(nil))
	mustList(t, s.Dynamic(t, "one").Resource(widgets), metav1.ListOptions{})
	require.Len(t, s.table.Definitions(), 1)
	require.Eventually(t, func() bool { // documents are released soon after a request
		_, err := s.Discovery(t, "one").OpenAPISchema()
		require.NoError(t, err)
		return s.documents.Size() != 0
	}, deadline, tick)
	s.DeleteCRD(t, "one", "widgets.example.com")
	require.Eventually(t, func() bool { return s.documents.Size() == 0 }, deadline, tick)
	require.Eventually(t, func() bool { return len(s.table.Definitions()) == 0 }, deadline, tick)
	require.Eventually(t, func() bool { return s.opened.custom() == 0 }, deadline, tick)

	s.CreateCRD(t, "one", widgetCRD(nil))
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
}
