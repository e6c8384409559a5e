package customresource

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// boundAPIs stands for APIs that logical clusters have from elsewhere: each has
// widgets of the schema that is bound there.
type boundAPIs struct {
	mu        sync.Mutex
	bound     map[string]*definitions.Schema // by logical cluster
	listeners map[int]func(definitions.Change)
	next      int
}

func newBoundAPIs(bound map[string]*definitions.Schema) *boundAPIs {
	return &boundAPIs{bound: bound, listeners: map[int]func(definitions.Change){}}
}

// boundSchema is a schema of widgets with an identity, and with a property.
func boundSchema(t *testing.T, identity, property string) *definitions.Schema {
	t.Helper()
	crd := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{property: {Type: "string"}})
	apiextensionsserver.Scheme.Default(crd)
	s, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names, identity)
	require.NoError(t, err)
	return s
}

func (b *boundAPIs) Resolve(_ context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	if l.Resource.Resource != "widgets" {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !l.Cluster.Wildcard {
		return definitionOf(b.bound[l.Cluster.Name.String()]), nil
	}
	for _, s := range b.bound {
		if s.Identity == l.Identity {
			return definitionOf(s), nil
		}
	}
	return nil, nil
}

func definitionOf(s *definitions.Schema) *definitions.Definition {
	if s == nil {
		return nil
	}
	return &definitions.Definition{Schema: s}
}

func (b *boundAPIs) List(_ context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := definitionOf(b.bound[cluster.Name.String()]); d != nil {
		return []*definitions.Definition{d}, nil
	}
	return nil, nil
}

func (b *boundAPIs) Subscribe(f func(definitions.Change)) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	n := b.next
	b.listeners[n] = f
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, n)
	}
}

// change binds a schema, or none, in the logical clusters, and tells of it once.
func (b *boundAPIs) change(c definitions.Change, to *definitions.Schema, clusters ...string) {
	b.mu.Lock()
	for _, cluster := range clusters {
		b.bound[cluster] = to
		if to == nil {
			delete(b.bound, cluster)
		}
	}
	listeners := slices.Collect(maps.Values(b.listeners))
	b.mu.Unlock()
	for _, f := range listeners {
		f(c)
	}
}

// TestIdentities: a wildcard by identity sees the objects of that identity with
// full content, and no others.
func TestIdentities(t *testing.T) {
	t.Parallel()
	a, b := boundSchema(t, "aaaa", "x"), boundSchema(t, "bbbb", "x")
	bound := newBoundAPIs(map[string]*definitions.Schema{"one": a, "two": a, "three": b})
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}})
	for _, cluster := range []string{"one", "two", "three"} {
		_, err := s.Dynamic(t, cluster).Resource(widgets).Namespace("default").Create(t.Context(), widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for identity, want := range map[string]int{"aaaa": 2, "bbbb": 1} {
		resource := widgets
		resource.Resource += ":" + identity
		list, err := s.Dynamic(t, "*").Resource(resource).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, want)
		require.Contains(t, list.Items[0].Object, "spec")
	}
	_, err := s.Dynamic(t, "*").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err))

	created := s.CreateCRD(t, "one", widgetCRD(nil))
	requireCondition(t, created, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
}

// watchOf is a watch of a test that tells how it goes.
type watchOf struct {
	t *testing.T
	watch.Interface
}

func (s *testServer) watchAll(t *testing.T, cluster, identity string) watchOf {
	t.Helper()
	resource := widgets
	if identity != "" {
		resource.Resource += ":" + identity
	}
	client := s.Dynamic(t, cluster).Resource(resource)
	list, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return watchOf{t, w}
}

// ends waits until the watch ends.
func (w watchOf) ends(why string) {
	w.t.Helper()
	timeout := time.After(deadline)
	for {
		select {
		case _, open := <-w.ResultChan():
			if !open {
				return
			}
		case <-timeout:
			require.Fail(w.t, "the watch goes on", why)
		}
	}
}

// goesOn waits for an object of the watch.
func (w watchOf) goesOn(name string) {
	w.t.Helper()
	event, open := nextEvent(w.t, w)
	require.True(w.t, open, "the watch has ended")
	require.Equal(w.t, name, object(w.t, event).GetName())
}

// TestSourceComesAndGoes: a source appears, changes a schema, for all logical
// clusters at once and for one, and goes, while clients list and watch. Only the
// watches of what changed end, and no request fails but for what is not there.
func TestSourceComesAndGoes(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	ctx, stop := context.WithCancel(t.Context())
	var listers sync.WaitGroup
	defer listers.Wait()
	defer stop()
	for _, cluster := range []string{"one", "two"} {
		client := s.Dynamic(t, cluster).Resource(widgets)
		listers.Go(func() {
			for ctx.Err() == nil {
				_, err := client.List(ctx, metav1.ListOptions{})
				assert.True(t, err == nil || ctx.Err() != nil || apierrors.IsNotFound(err), "%v", err)
			}
		})
	}
	create := func(cluster, name, property string) {
		t.Helper()
		created, err := s.Dynamic(t, cluster).Resource(widgets).Namespace("default").Create(t.Context(), widget(name, map[string]any{property: "y"}), metav1.CreateOptions{})
		require.NoError(t, err)
		value, _, _ := unstructured.NestedString(created.Object, "spec", property)
		require.Equal(t, "y", value, "it is served with the schema of now")
	}
	s.CreateCRD(t, "three", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"x": {Type: "string"}}))
	own := s.watchAll(t, "three", "")

	first, second := boundSchema(t, "aaaa", "x"), boundSchema(t, "aaaa", "z")
	bound := newBoundAPIs(map[string]*definitions.Schema{"one": first, "two": first})
	remove := s.AddSource(bound)
	create("one", "a", "x")
	create("two", "a", "x")
	groups, err := s.Discovery(t, "one").ServerResourcesForGroupVersion("example.com/v1")
	require.NoError(t, err)
	require.NotEmpty(t, groups.APIResources)
	waits := s.CreateCRD(t, "one", widgetCRD(nil))
	requireCondition(t, waits, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse, "ListKindConflict")

	one, two, all := s.watchAll(t, "one", ""), s.watchAll(t, "two", ""), s.watchAll(t, "*", "aaaa")
	bound.change(definitions.Change{Schema: first}, second, "one", "two")
	for _, w := range []watchOf{one, two, all} {
		w.ends("its schema has changed")
	}
	create("one", "b", "z")

	one, two = s.watchAll(t, "one", ""), s.watchAll(t, "two", "")
	bound.change(definitions.Change{Schema: second, Cluster: request.Cluster{Name: "one"}}, first, "one")
	one.ends("its schema has changed")
	create("two", "c", "z")
	two.goesOn("c")

	one = s.watchAll(t, "one", "")
	bound.change(definitions.Change{Schema: first, Cluster: request.Cluster{Name: "one"}, Gone: true}, nil, "one")
	one.ends("its definition is gone")
	established := func(cluster string) func() bool {
		return func() bool {
			crd, err := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), waits.Name, metav1.GetOptions{})
			return err == nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
		}
	}
	require.Eventually(t, established("one"), deadline, tick, "the names are free again")
	list, err := s.Dynamic(t, "one").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items, "what has an identity is another API's")

	waits = s.CreateCRD(t, "two", widgetCRD(nil))
	requireCondition(t, waits, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
	remove()
	two.ends("its source is gone")
	require.Eventually(t, established("two"), deadline, tick, "the names are free again")
	require.Empty(t, bound.listeners)

	create("three", "a", "x")
	own.goesOn("a")
}
