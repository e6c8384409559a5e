package customresource

import (
	"context"
	"errors"
	"maps"
	"slices"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

// boundAPIs represents bound APIs: each logical cluster has the resource of its bound schema.
type boundAPIs struct {
	mu        sync.Mutex
	bound     map[string]boundAPI // by logical cluster
	ending    map[string]bool     // logical clusters with a binding that is being deleted
	listeners map[int]func(definitions.Change)
	next      int
}

// boundAPI is a schema of widgets with an identity.
type boundAPI struct {
	*definitions.Schema
	identity string
}

func newBoundAPIs(bound map[string]boundAPI) *boundAPIs {
	return &boundAPIs{bound: bound, ending: map[string]bool{}, listeners: map[int]func(definitions.Change){}}
}

// boundSchema returns a schema of widgets with an identity and a property.
func boundSchema(t testing.TB, identity, property string) boundAPI {
	t.Helper()
	crd := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{property: {Type: "string"}})
	return boundAPI{schemaOf(t, crd), identity}
}

func (b *boundAPIs) Resolve(_ context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !l.Cluster.Wildcard {
		if s := b.bound[l.Cluster.Name.String()]; s.Schema != nil && s.Resource == l.Resource {
			d := definitionOf(s)
			d.Terminating = b.ending[l.Cluster.Name.String()]
			return d, nil
		}
		return nil, nil
	}
	for _, s := range b.bound {
		if s.identity == l.Identity && s.Resource == l.Resource {
			return definitionOf(s), nil
		}
	}
	return nil, nil
}

func definitionOf(s boundAPI) *definitions.Definition {
	if s.Schema == nil {
		return nil
	}
	return &definitions.Definition{Schema: s.Schema, Identity: s.identity}
}

func (b *boundAPIs) Read(context.Context, definitions.Lookup) (*definitions.Definition, error) {
	return nil, nil
}

func (b *boundAPIs) List(_ context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := definitionOf(b.bound[cluster.Name.String()]); d != nil {
		if b.ending[cluster.Name.String()] {
			d.Terminating, d.Owner = true, "an APIBinding"
		}
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

// terminate marks the API of a logical cluster as being deleted.
func (b *boundAPIs) terminate(cluster string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending[cluster] = true
}

// change binds a schema, or none, in the logical clusters, and notifies once.
func (b *boundAPIs) change(c definitions.Change, to boundAPI, clusters ...string) {
	b.mu.Lock()
	for _, cluster := range clusters {
		b.bound[cluster] = to
		if to.Schema == nil {
			delete(b.bound, cluster)
		}
	}
	listeners := slices.Collect(maps.Values(b.listeners))
	b.mu.Unlock()
	for _, f := range listeners {
		f(c)
	}
}

// TestIdentities: APIs of two providers and a definition with the same name and schema are separate, in a
// logical cluster and in wildcard requests by identity. They share a store and serving info, and one list of
// metadata contains all of them.
func TestIdentities(t *testing.T) {
	t.Parallel()
	data := customresourcetest.NewData(t)
	a := boundSchema(t, "aaaa", "x")
	b := boundAPI{a.Schema, "bbbb"}
	bound := newBoundAPIs(map[string]boundAPI{"one": a, "two": a, "three": b})
	s := startServer(t, serverOptions{data: data, sources: []definitions.Source{bound}})
	s.CreateCRD(t, "four", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"x": {Type: "string"}}))
	all := s.watchAll(t, "*", "bbbb")
	for _, cluster := range []string{"one", "two", "three", "four"} {
		forged := widget("a", map[string]any{"x": cluster})
		forged.SetAnnotations(map[string]string{request.IdentityAnnotation: "bbbb"})
		created := mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), forged)
		requireNoIdentity(t, created)
	}
	all.continues("a")
	s.requireWorlds(t, "bbbb|three")

	// The same logical cluster has another API with that name.
	one := s.watchAll(t, "one", "")
	bound.change(definitions.Change{Schema: a.Schema, Identity: "aaaa", Cluster: request.Cluster{Name: "one"}}, b, "one")
	one.ends("the identity has changed")
	one = s.watchAll(t, "one", "")
	in := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	mustCreate(t, in, widget("a", map[string]any{"x": "other"})) // the name is free for this identity
	one.continues("a")
	all.continues("a")
	patched := mustPatch(t, in, "a", `{"metadata":{"annotations":{"`+request.IdentityAnnotation+`":"aaaa"}},"spec":{"x":"patched"}}`)
	requireNoIdentity(t, patched)
	event, _ := nextEvent(t, all)
	require.Equal(t, watch.Modified, event.Type)
	requireNoIdentity(t, object(t, event))
	s.requireWorlds(t, "bbbb|one", "bbbb|three")
	require.NoError(t, in.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	event, _ = nextEvent(t, all)
	require.Equal(t, watch.Deleted, event.Type)
	requireNoIdentity(t, object(t, event))
	bound.change(definitions.Change{Schema: a.Schema, Identity: "bbbb", Cluster: request.Cluster{Name: "one"}}, a, "one")
	back := mustGet(t, in, "a")
	requireNoIdentity(t, back)
	require.Equal(t, "one", back.Object["spec"].(map[string]any)["x"]) //nolint:forcetypeassert // as written above
	s.requireWorlds(t, "bbbb|three")
	require.Equal(t, 1, s.opened.custom(), "all identities must share a store")
	three := s.watchAll(t, "three", "")
	bound.change(definitions.Change{Schema: a.Schema, Identity: "aaaa"}, a, "two")
	inThree := s.Dynamic(t, "three").Resource(widgets).Namespace("default")
	mustCreate(t, inThree, widget("b", nil))
	three.continues("b")
	require.NoError(t, inThree.Delete(t.Context(), "b", metav1.DeleteOptions{}))

	_, err := s.Dynamic(t, "*").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err))
	created := s.CreateCRD(t, "one", widgetCRD(nil))
	requireCondition(t, created, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")

	// Storage and watches return the same.
	s.Stop()
	s = startServer(t, serverOptions{data: data, sources: []definitions.Source{newBoundAPIs(map[string]boundAPI{"one": a, "two": a, "three": b})}})
	s.requireWorlds(t, "bbbb|three")
}

// requireWorlds checks the objects of TestIdentities: one in each of four logical clusters, and the given ones
// of the identity bbbb.
func (s *testServer) requireWorlds(t *testing.T, ofB ...string) {
	t.Helper()
	worlds := map[string][]string{"aaaa": {"one", "two"}, "bbbb": nil}
	for _, world := range ofB {
		worlds["bbbb"] = append(worlds["bbbb"], strings.TrimPrefix(world, "bbbb|"))
	}
	sum := 1 // the definition's object
	for identity, want := range worlds {
		resource := widgets
		resource.Resource += ":" + identity
		for _, options := range []metav1.ListOptions{{}, {ResourceVersion: "0"}, {Limit: 10}} {
			list := mustList(t, s.Dynamic(t, "*").Resource(resource), options)
			var got []string
			for _, item := range list.Items {
				got = append(got, item.GetAnnotations()[logicalcluster.AnnotationKey])
				requireNoIdentity(t, &item)
				require.Contains(t, item.Object, "spec")
			}
			require.ElementsMatch(t, want, got, "%s %+v", identity, options)
		}
		sum += len(want)
	}
	for _, cluster := range []string{"two", "three", "four"} {
		list := mustList(t, s.Dynamic(t, cluster).Resource(widgets), metav1.ListOptions{})
		require.Len(t, list.Items, 1, cluster)
		requireNoIdentity(t, &list.Items[0])
	}
	everything, err := s.Metadata(t, "*").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, everything.Items, sum)
	for i := range everything.Items {
		requireNoIdentity(t, &everything.Items[i])
	}
}

func requireNoIdentity(t *testing.T, obj metav1.Object) {
	t.Helper()
	require.NotContains(t, obj.GetAnnotations(), request.IdentityAnnotation)
	require.Contains(t, obj.GetAnnotations(), logicalcluster.AnnotationKey)
}

// TestTerminatingIsDiscovered: discovery contains resources whose binding or definition is being deleted,
// because clients may have to remove finalizers.
func TestTerminatingIsDiscovered(t *testing.T) {
	t.Parallel()
	bound := newBoundAPIs(map[string]boundAPI{"one": boundSchema(t, "aaaa", "x")})
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}})
	verbs := func() metav1.Verbs {
		list, err := s.Discovery(t, "one").ServerResourcesForGroupVersion(widgets.GroupVersion().String())
		require.NoError(t, err)
		i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == widgets.Resource })
		require.GreaterOrEqual(t, i, 0, "%v", list)
		return list.APIResources[i].Verbs
	}
	require.Contains(t, verbs(), "create")
	bound.terminate("one")
	require.NotContains(t, verbs(), "create")
	require.Contains(t, verbs(), "delete")
}

// watchOf is a watch with helpers.
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
	list := mustList(t, client, metav1.ListOptions{})
	w := mustWatch(t, client, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
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
			require.Fail(w.t, "the watch has not ended", why)
		}
	}
}

// continues waits for an event with an object.
func (w watchOf) continues(name string) {
	w.t.Helper()
	event, open := nextEvent(w.t, w)
	require.True(w.t, open, "the watch has ended")
	require.Equal(w.t, name, object(w.t, event).GetName())
}

// TestSourceIsAddedAndRemoved: a source is added, changes a schema in all logical clusters and in one, and is
// removed, while clients list and watch. Only watches of changed resources end, and requests fail only for
// missing resources.
func TestSourceIsAddedAndRemoved(t *testing.T) {
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
		created := mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget(name, map[string]any{property: "y"}))
		value, _, _ := unstructured.NestedString(created.Object, "spec", property)
		require.Equal(t, "y", value, "the current schema must be served")
	}
	s.CreateCRD(t, "three", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"x": {Type: "string"}}))
	own := s.watchAll(t, "three", "")

	first, second := boundSchema(t, "aaaa", "x"), boundSchema(t, "aaaa", "z")
	bound := newBoundAPIs(map[string]boundAPI{"one": first, "two": first})
	remove := s.AddSource(bound)
	create("one", "a", "x")
	create("two", "a", "x")
	groups, err := s.Discovery(t, "one").ServerResourcesForGroupVersion("example.com/v1")
	require.NoError(t, err)
	require.NotEmpty(t, groups.APIResources)
	waits := s.CreateCRD(t, "one", widgetCRD(nil))
	requireCondition(t, waits, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse, "ListKindConflict")

	one, two, all := s.watchAll(t, "one", ""), s.watchAll(t, "two", ""), s.watchAll(t, "*", "aaaa")
	bound.change(definitions.Change{Schema: first.Schema, Identity: "aaaa"}, second, "one", "two")
	for _, w := range []watchOf{one, two, all} {
		w.ends("the schema has changed")
	}
	create("one", "b", "z")

	one, two = s.watchAll(t, "one", ""), s.watchAll(t, "two", "")
	bound.change(definitions.Change{Schema: second.Schema, Identity: "aaaa", Cluster: request.Cluster{Name: "one"}}, first, "one")
	one.ends("the schema has changed")
	create("two", "c", "z")
	two.continues("c")

	one = s.watchAll(t, "one", "")
	bound.change(definitions.Change{Schema: first.Schema, Identity: "aaaa", Cluster: request.Cluster{Name: "one"}, Removed: true}, boundAPI{}, "one")
	one.ends("the definition was removed")
	established := func(cluster string) func() bool {
		return func() bool {
			crd, err := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), waits.Name, metav1.GetOptions{})
			return err == nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
		}
	}
	require.Eventually(t, established("one"), deadline, tick, "the names must be released")
	list := mustList(t, s.Dynamic(t, "one").Resource(widgets), metav1.ListOptions{})
	require.Empty(t, list.Items, "objects with an identity must not be listed, because they belong to another API")

	waits = s.CreateCRD(t, "two", widgetCRD(nil))
	requireCondition(t, waits, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
	remove()
	two.ends("the source was removed")
	require.Eventually(t, established("two"), deadline, tick, "the names must be released")
	require.Empty(t, bound.listeners)

	create("three", "a", "x")
	own.continues("a")
}

// TestQualifiedResources: only wildcard requests may have a resource with a colon and an identity. A user
// authorized for "widgets:" is not authorized for widgets.
func TestQualifiedResources(t *testing.T) {
	t.Parallel()
	a := boundSchema(t, "aaaa", "x")
	bound := newBoundAPIs(map[string]boundAPI{"one": a})
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}})
	s.CreateCRD(t, "two", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"x": {Type: "string"}}))
	for _, cluster := range []string{"one", "two", "*"} {
		client := s.CRDs(t, cluster).ApiextensionsV1().RESTClient()
		for _, resource := range []string{"widgets:", "widgets:aaaa", "widgets::", "widgets:aaaa:", "widgets:AAAA", "widgets:*", "widgets:..", "widgets:%2e%2e", "widgets: ", ":", ":aaaa", "widgets%3a"} {
			err := client.Get().AbsPath("/apis", widgets.Group, widgets.Version, resource).Do(t.Context()).Error()
			if cluster == "*" && resource == "widgets:aaaa" {
				require.NoError(t, err)
				continue
			}
			require.True(t, apierrors.IsNotFound(err), "%s in %s: %v", resource, cluster, err)
			if cluster == "*" && strings.Contains(resource, ":") {
				require.ErrorContains(t, err, "status.identityHash", resource)
			}
		}
	}
	all := s.CRDs(t, "*").ApiextensionsV1().RESTClient()
	require.ErrorContains(t, all.Get().AbsPath("/apis", widgets.Group, widgets.Version, "widgets:bbbb").Do(t.Context()).Error(), "no APIBinding binds widgets."+widgets.Group+" with the identity bbbb")
	require.ErrorContains(t, all.Get().AbsPath("/apis", widgets.Group, widgets.Version, "widgets").Do(t.Context()).Error(), "request those of one identity")
}

// unknownAPIs returns an error for some logical clusters.
type unknownAPIs struct {
	*boundAPIs
	why map[string]error // by logical cluster
}

func (u unknownAPIs) Resolve(_ context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	return nil, u.why[l.Cluster.Name.String()]
}

func (u unknownAPIs) List(_ context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	return nil, u.why[cluster.Name.String()]
}

// TestUnknownDefinitions: the error of a source is returned if it suggests a delay. Discovery always suggests
// a delay.
func TestUnknownDefinitions(t *testing.T) {
	t.Parallel()
	later := apierrors.NewServiceUnavailable("not known yet")
	later.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	s := startServer(t, serverOptions{sources: []definitions.Source{unknownAPIs{newBoundAPIs(nil), map[string]error{
		"starting": later, "bound": apierrors.NewTooManyRequests("just bound", 1), "broken": errors.New("broken"), "odd": apierrors.NewNotFound(schema.GroupResource{}, "copy"),
	}}}})
	for cluster, want := range map[string]metav1.StatusReason{
		"starting": metav1.StatusReasonServiceUnavailable, "bound": metav1.StatusReasonTooManyRequests, "broken": metav1.StatusReasonInternalError, "odd": metav1.StatusReasonInternalError,
	} {
		client := s.CRDs(t, cluster).ApiextensionsV1().RESTClient()
		err := client.Get().AbsPath("/apis", widgets.Group, widgets.Version, widgets.Resource).MaxRetries(0).Do(t.Context()).Error()
		require.Equal(t, want, apierrors.ReasonForError(err), "%s: %v", cluster, err)
		err = client.Get().AbsPath("/apis").MaxRetries(0).Do(t.Context()).Error()
		require.True(t, apierrors.IsServiceUnavailable(err), "%s: %v", cluster, err)
		_, later := apierrors.SuggestsClientDelay(err)
		require.True(t, later, "%s: %v", cluster, err)
	}
}
