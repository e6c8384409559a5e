package customresource

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/request"
)

func TestEstablishedInOneWrite(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	crd := widgetCRD(nil)
	crd.Status.StoredVersions, crd.Status.AcceptedNames.Kind = []string{"v9"}, "Other"
	created := s.CreateCRD(t, "one", crd)
	require.Equal(t, "one", created.Annotations["kcp.io/cluster"])
	conditions := map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.ConditionStatus{}
	for _, c := range created.Status.Conditions {
		conditions[c.Type] = c.Status
		require.False(t, c.LastTransitionTime.IsZero())
	}
	require.Equal(t, map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.ConditionStatus{
		apiextensionsv1.NamesAccepted: apiextensionsv1.ConditionTrue,
		apiextensionsv1.Established:   apiextensionsv1.ConditionTrue,
	}, conditions)
	require.Equal(t, created.Spec.Names, created.Status.AcceptedNames)
	require.Equal(t, []string{"v1"}, created.Status.StoredVersions)

	// The new resource is found at all times.
	w := mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(3), "weight": int64(9)}))
	require.Equal(t, "one", w.GetAnnotations()["kcp.io/cluster"])
	require.Equal(t, map[string]any{"size": int64(3), "color": "blue"}, w.Object["spec"], "pruned and defaulted")

	_, err := s.Dynamic(t, "two").Resource(widgets).Namespace("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = s.Dynamic(t, "one").Resource(widgets).Namespace("default").Create(t.Context(), widget("b", map[string]any{"size": int64(0)}), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, `Widget.example.com "b" is invalid`)
}

func TestIsolation(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one", "two")
	s.CreateCRD(t, "three", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"weight": {Type: "integer"}}))

	for _, cluster := range []string{"one", "two", "three"} {
		mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("same", map[string]any{"size": int64(1), "weight": int64(7), "color": cluster}))
	}
	for _, cluster := range []string{"one", "two", "three"} {
		list := mustList(t, s.Dynamic(t, cluster).Resource(widgets), metav1.ListOptions{})
		require.Len(t, list.Items, 1)
		color, _, _ := unstructured.NestedString(list.Items[0].Object, "spec", "color")
		require.Equal(t, cluster, color)
		_, weighed, _ := unstructured.NestedInt64(list.Items[0].Object, "spec", "weight")
		require.Equal(t, cluster == "three", weighed, "each logical cluster must have its own schema")
	}
	require.Equal(t, 1, s.opened.custom(), "the watch cache must be shared")
	require.Len(t, s.table.Definitions(), 2, "equal definitions must share their serving info")
}

// TestStopWithHangingHook: a hanging webhook does not keep a server from stopping. Leaks are checked after all
// tests.
func TestStopWithHangingHook(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 16), make(chan struct{})
	left := make(chan struct{}, 16)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // detects the end of the call
		arrived <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
		<-release
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(release) })
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "one", twoVersions(byWebhook(hook.URL, hook.Certificate())))
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", nil))
	gave, ended := make(chan error, 1), make(chan struct{})
	client := s.Dynamic(t, "one").Resource(widgets.GroupResource().WithVersion("v2"))
	go func() {
		_, err := client.List(t.Context(), metav1.ListOptions{})
		gave <- err
	}()
	go func() {
		defer close(ended)
		w, err := client.Watch(t.Context(), metav1.ListOptions{})
		if err == nil {
			for range w.ResultChan() {
			}
		}
	}()
	<-arrived
	<-arrived
	s.Stop()
	require.Error(t, <-gave)
	<-ended
	for range 2 {
		select {
		case <-left:
		case <-time.After(deadline):
			require.Fail(t, "a call has not ended")
		}
	}
}

type trims int

func (n *trims) Trim() { *n++ }

// TestCompiledPatternsAreBounded: patterns that a request compiles are trimmed when it ends.
func TestCompiledPatternsAreBounded(t *testing.T) {
	var n, before trims
	s := &Server{patterns: &n, builtIns: &documents.BuiltIns{}}
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { before = n })
	s.Wrap(next).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody))
	require.Zero(t, before)
	require.EqualValues(t, 1, n)
}

// TestListOutlivesServingInfo: a list continues after its definition was deleted and the serving info
// released.
func TestListOutlivesServingInfo(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{release: 20 * time.Millisecond})
	s.CreateCRD(t, "one", widgetCRD(nil))
	mustList(t, s.Dynamic(t, "one").Resource(widgets), metav1.ListOptions{})
	ctx := genericapirequest.WithNamespace(request.WithClusterName(t.Context(), "one"), "")
	lister, done := s.listerOf(t, "one")
	watcher, ok := lister.(rest.Watcher)
	require.True(t, ok)
	w, err := watcher.Watch(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	defer w.Stop()
	s.DeleteCRD(t, "one", "widgets.example.com")
	require.Eventually(t, func() bool {
		select {
		case _, open := <-w.ResultChan():
			return !open
		default:
			return false
		}
	}, deadline, tick, "upstream's handler must drop the version store")
	_, err = lister.List(ctx, nil)
	require.NoError(t, err)
	require.Equal(t, 1, s.opened.custom())
	done()
	require.Zero(t, s.opened.custom())
}

// listerOf returns the lister for widgets of a logical cluster as JSON; it may be used until done is called.
func (s *testServer) listerOf(t *testing.T, cluster logicalcluster.Name) (lister rest.Lister, done func()) {
	t.Helper()
	lookup := definitions.Lookup{Cluster: request.Cluster{Name: cluster}, Resource: widgets.GroupResource(), Version: "v1"}
	d, err := s.sources.Resolve(t.Context(), lookup)
	require.NoError(t, err)
	lister, done, err = s.stores.Lister(d.Schema, d.Schema.Version("v1"))
	require.NoError(t, err)
	return lister, done
}

// slowAdmission delays creations, like a slow webhook.
type slowAdmission struct{ arrived, goOn chan struct{} }

func (slowAdmission) Handles(o admission.Operation) bool { return o == admission.Create }

func (a slowAdmission) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	a.arrived <- struct{}{}
	<-a.goOn
	return nil
}

// TestUnservedWhileCreating: an object is not stored if its resource was removed during admission, because it
// might not be deleted with the other objects.
func TestUnservedWhileCreating(t *testing.T) {
	t.Parallel()
	bound := newBoundAPIs(map[string]boundAPI{})
	slow := slowAdmission{arrived: make(chan struct{}, 1), goOn: make(chan struct{})}
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}, admission: slow})
	bind := func(cluster string, api boundAPI) { bound.change(definitions.Change{}, api, cluster) }
	changes := map[string]struct {
		change func(cluster string, api boundAPI)
		want   metav1.StatusReason
	}{
		"terminating": {func(cluster string, _ boundAPI) { bound.terminate(cluster) }, metav1.StatusReasonForbidden},
		"removed":     {func(cluster string, _ boundAPI) { bind(cluster, boundAPI{}) }, metav1.StatusReasonNotFound},
		"identity":    {func(cluster string, api boundAPI) { bind(cluster, boundAPI{api.Schema, "bbbb"}) }, metav1.StatusReasonNotFound},
		"schema": {func(cluster string, api boundAPI) {
			bind(cluster, boundAPI{twinSchema(t, api.Resource.Group).Schema, api.identity})
		}, metav1.StatusReasonUnknown},
	}
	for _, api := range []boundAPI{boundSchema(t, "aaaa", "x"), coreSchema(t)} {
		resource := schema.GroupVersionResource{Group: api.Resource.Group, Version: "v1", Resource: api.Resource.Resource}
		for way, create := range creations {
			for change, tc := range changes {
				cluster := way + "-" + change + "-" + api.identity
				bind(cluster, api)
				in := s.Dynamic(t, cluster).Resource(resource).Namespace("default")
				obj := versioned(widget("a", map[string]any{"size": int64(1)}), resource.GroupVersion().String())
				result := make(chan error, 1)
				go func() { result <- create(t.Context(), in, obj) }()
				select {
				case <-slow.arrived:
				case err := <-result:
					require.NoError(t, err, "%s did not wait", cluster)
				}
				tc.change(cluster, api)
				slow.goOn <- struct{}{}
				require.Equal(t, tc.want, apierrors.ReasonForError(<-result), cluster)

				bind(cluster, api)
				list := mustList(t, in, metav1.ListOptions{})
				require.Equal(t, tc.want == metav1.StatusReasonUnknown, len(list.Items) == 1, "unexpected number of objects in %s", cluster)
			}
		}
	}
}

// creations are the requests that create an object.
var creations = map[string]func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) error{
	"create": func(ctx context.Context, in dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
		_, err := in.Create(ctx, obj, metav1.CreateOptions{})
		return err
	},
	"apply": func(ctx context.Context, in dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
		_, err := in.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "test"})
		return err
	},
}
