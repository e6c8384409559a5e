package customresource

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestWildcardMetadata: wildcard requests without an identity return only metadata, because definitions may
// conflict.
func TestWildcardMetadata(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	conflicting := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: "string"}})
	conflicting.Spec.Names.Kind, conflicting.Spec.Names.ListKind = "Gizmo", "GizmoList"
	conflicting.Spec.Versions[0].Subresources = nil
	conflicting.Spec.Scope = apiextensionsv1.ClusterScoped
	s.CreateCRD(t, "two", conflicting)
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
	gizmo := widget("a", map[string]any{"size": "big"})
	gizmo.SetKind("Gizmo")
	mustCreate(t, s.Dynamic(t, "two").Resource(widgets), gizmo)

	_, err := s.Dynamic(t, "*").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	client := s.Metadata(t, "*").Resource(widgets)
	list, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	clusters := map[string]string{}
	for _, item := range list.Items {
		clusters[item.Annotations["kcp.io/cluster"]] = item.Namespace + "/" + item.Name
	}
	require.Equal(t, map[string]string{"one": "default/a", "two": "/a"}, clusters)

	w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t, s.Dynamic(t, "two").Resource(widgets).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	event, _ := nextEvent(t, w)
	require.Equal(t, watch.Deleted, event.Type)
	partial, ok := event.Object.(*metav1.PartialObjectMetadata)
	require.True(t, ok, "%T", event.Object)
	require.Equal(t, "two", partial.Annotations["kcp.io/cluster"])

	for _, unknown := range []string{"unknowns", "widgets:0123"} {
		gvr := widgets.GroupVersion().WithResource(unknown)
		_, err = s.Metadata(t, "*").Resource(gvr).List(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsNotFound(err), "%s: %v", unknown, err)
	}
}

// TestMetadataNeverFallsBack: an Accept header that prefers metadata but also accepts objects returns
// metadata.
func TestMetadataNeverFallsBack(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
	client, err := rest.UnversionedRESTClientFor(rawConfig(s.ClusterConfig("*")))
	require.NoError(t, err)
	for accept, found := range map[string]bool{
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json": true,
		"application/xml;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json":  true,
		"application/json,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1": false,
		"application/json;as=Table;g=meta.k8s.io;v=v1":                                      false,
		"": false,
	} {
		raw, err := client.Get().AbsPath("/apis/example.com/v1/widgets").SetHeader("Accept", accept).DoRaw(t.Context())
		if found {
			require.NotContains(t, string(raw), "blue", accept)
		} else {
			require.True(t, apierrors.IsNotFound(err), "%s: %v", accept, err)
		}
	}
}

// TestMetadataOfOne: a list of metadata is rejected for a single object, before a write.
func TestMetadataOfOne(t *testing.T) {
	t.Parallel()
	s := startWithWidgets(t, "one")
	objects := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	mustCreate(t, objects, widget("a", map[string]any{"size": int64(1)}))
	client, err := rest.UnversionedRESTClientFor(rawConfig(s.ClusterConfig("one")))
	require.NoError(t, err)
	const all = "/apis/example.com/v1/namespaces/default/widgets"
	as := func(r *rest.Request, kind, version string) error {
		raw, err := r.SetHeader("Accept", "application/json;as="+kind+";g=meta.k8s.io;v="+version+",application/json").DoRaw(t.Context())
		if err == nil {
			require.Contains(t, string(raw), `"name":"a"`)
		}
		return err
	}
	for _, version := range []string{"v1", "v1beta1"} {
		for name, r := range map[string]*rest.Request{
			"read":    client.Get().AbsPath(all + "/a"),
			"changed": client.Patch(types.MergePatchType).AbsPath(all + "/a").Body([]byte(`{"spec":{"size":2}}`)),
		} {
			err := as(r, "PartialObjectMetadataList", version)
			require.True(t, apierrors.IsNotAcceptable(err), "%s: %v", name, err)
		}
		require.NoError(t, as(client.Get().AbsPath(all), "PartialObjectMetadataList", version))
		require.NoError(t, as(client.Get().AbsPath(all+"/a"), "PartialObjectMetadata", version))
	}
	require.NoError(t, as(client.Get().AbsPath(all+"/a"), "PartialObjectMetadataList", "v9"), "unknown versions must be ignored")
	_, err = client.Get().AbsPath(all+"/a").SetHeader("Accept", "PartialObjectMetadataList").DoRaw(t.Context())
	require.True(t, apierrors.IsNotAcceptable(err), "invalid media type: %v", err)
	got := mustGet(t, objects, "a")
	require.EqualValues(t, 1, got.Object["spec"].(map[string]any)["size"])
}

func rawConfig(c *rest.Config) *rest.Config {
	c.NegotiatedSerializer = rawNegotiator
	c.GroupVersion = &schema.GroupVersion{}
	return c
}

// TestSystemDefinitions are served everywhere, with full content in wildcard requests.
func TestSystemDefinitions(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{system: []*apiextensionsv1.CustomResourceDefinition{widgetCRD(nil)}})
	for _, cluster := range []string{"one", "two"} {
		mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(1)}))
	}
	list := mustList(t, s.Dynamic(t, "*").Resource(widgets), metav1.ListOptions{})
	require.Len(t, list.Items, 2)
	require.Equal(t, "blue", list.Items[0].Object["spec"].(map[string]any)["color"])

	shadow := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"extra": {Type: "string"}})
	created := s.CreateCRD(t, "one", shadow)
	requireCondition(t, created, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
	s.DeleteCRD(t, "one", shadow.Name)
	list = mustList(t, s.Dynamic(t, "one").Resource(widgets), metav1.ListOptions{})
	require.Len(t, list.Items, 1, "deletion of an unserved definition must not delete objects")
}

// TestFixedSet uses the package like a server of replicas.
func TestFixedSet(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{
		system:     []*apiextensionsv1.CustomResourceDefinition{Opaque(widgetCRD(nil))},
		systemOnly: true,
	})
	require.Error(t, s.InstallCRDs(nil))
	client := func(shard, cluster string) dynamic.ResourceInterface {
		c := rest.CopyConfig(s.Config)
		c.Host += "/shards/" + shard + request.ClusterPath(cluster)
		d, err := dynamic.NewForConfig(c)
		require.NoError(t, err)
		if cluster == request.Wildcard {
			return d.Resource(widgets)
		}
		return d.Resource(widgets).Namespace("default")
	}
	for _, shard := range []string{"root", "east"} {
		for _, cluster := range []string{"one", "two"} {
			u := widget("a", map[string]any{"size": int64(-1), "unknown": "kept"})
			require.NoError(t, unstructured.SetNestedField(u.Object, "done", "status", "phase"))
			created := mustCreate(t, client(shard, cluster), u)
			require.Equal(t, map[string]any{"phase": "done"}, created.Object["status"], "the status must be stored with the object")
			require.Equal(t, map[string]any{"size": int64(-1), "unknown": "kept"}, created.Object["spec"], "the spec must not change")
			require.Equal(t, shard, created.GetAnnotations()["kcp.io/shard"])
		}
	}
	for _, path := range [][2]string{{"*", "*"}, {"root", "one"}} {
		c := rest.CopyConfig(s.Config)
		c.Host += "/shards/" + path[0] + request.ClusterPath(path[1])
		d, err := discovery.NewDiscoveryClientForConfig(c)
		require.NoError(t, err)
		list, err := d.ServerResourcesForGroupVersion("example.com/v1")
		require.NoError(t, err)
		require.Len(t, list.APIResources, 1)
	}
	for path, want := range map[[2]string]int{{"*", "*"}: 4, {"root", "*"}: 2, {"*", "one"}: 2, {"east", "two"}: 1} {
		list := mustList(t, client(path[0], path[1]), metav1.ListOptions{})
		require.Len(t, list.Items, want, "%v", path)
		for _, item := range list.Items {
			require.Equal(t, "kept", item.Object["spec"].(map[string]any)["unknown"])
		}
	}
}

// TestManyCreators: of concurrent definitions with conflicts, one gets each name.
func TestManyCreators(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	var wg sync.WaitGroup
	for i := range 8 {
		crd := widgetCRD(nil)
		plural := fmt.Sprintf("kind%ds", i)
		crd.Name = plural + ".example.com"
		crd.Spec.Names.Plural, crd.Spec.Names.Singular = plural, plural[:len(plural)-1]
		crd.Spec.Names.ShortNames = nil
		wg.Go(func() {
			_, _ = s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
		})
	}
	wg.Wait()
	s.requireOneEstablished(t, "one", 8)
}

// requireOneEstablished checks that one of the n definitions of a logical cluster is established.
func (s *testServer) requireOneEstablished(t *testing.T, cluster string, n int) {
	t.Helper()
	list, err := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, n)
	established := 0
	for i := range list.Items {
		if apihelpers.IsCRDConditionTrue(&list.Items[i], apiextensionsv1.Established) {
			established++
		}
	}
	require.Equal(t, 1, established, cluster)
}
