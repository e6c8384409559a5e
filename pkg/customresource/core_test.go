package customresource

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

var coreWidgets = schema.GroupVersionResource{Version: "v1", Resource: "widgets"}

// withPods serves an empty list of pods, like a server with built-in resources in the core group.
func withPods(next http.Handler) http.Handler {
	pods := metav1.APIResource{Name: "pods", SingularName: "pod", Namespaced: true, Kind: "Pod", Verbs: metav1.Verbs{"list"}}
	aggregated := apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{{Versions: []apidiscoveryv2.APIVersionDiscovery{{
		Version: "v1", Resources: []apidiscoveryv2.APIResourceDiscovery{{
			Resource: "pods", SingularResource: "pod", Scope: apidiscoveryv2.ScopeNamespace, Verbs: pods.Verbs, ResponseKind: &metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		}},
	}}}}}
	aggregated.SetGroupVersionKind(apidiscoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList"))
	versions := metav1.APIVersions{Versions: []string{"v1"}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: "here:1"}}}
	versions.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "APIVersions"})
	responses := map[string]any{
		"/api":               versions,
		"/api/v1":            metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{pods}},
		"/openapi/v3/api/v1": json.RawMessage(`{"openapi":"3.0.0","info":{"title":"core","version":"v1"},"paths":{"/api/v1/pods":{}},"components":{"schemas":{}}}`),
		"/api/v1/pods":       json.RawMessage(`{"kind":"PodList","apiVersion":"v1","items":[]}`),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := responses[r.URL.Path]
		contentType := "application/json"
		if r.URL.Path == "/api" && strings.Contains(r.Header.Get("Accept"), "APIGroupDiscoveryList") {
			response, contentType = aggregated, acceptAggregated
		}
		if response == nil {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", contentType)
		_ = json.NewEncoder(w).Encode(response)
	})
}

// coreSchema returns a schema of widgets in the core group.
func coreSchema(t *testing.T) boundAPI {
	t.Helper()
	crd := widgetCRD(nil)
	crd.Spec.Group = ""
	return boundAPI{schemaOf(t, crd), "cccc"}
}

// TestCoreGroup binds an API in the core group beside built-in resources.
func TestCoreGroup(t *testing.T) {
	t.Parallel()
	bound := newBoundAPIs(map[string]boundAPI{"one": coreSchema(t)})
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}, around: withPods})
	in := s.Dynamic(t, "one").Resource(coreWidgets).Namespace("default")
	w := mustWatch(t, in, metav1.ListOptions{})
	obj := versioned(widget("a", map[string]any{"size": int64(1)}), "v1")
	mustCreate(t, in, obj)
	event, _ := nextEvent(t, w)
	require.Equal(t, watch.Added, event.Type)
	require.Equal(t, "v1", object(t, event).GetAPIVersion())
	applied, err := in.Apply(t.Context(), "a", obj, metav1.ApplyOptions{FieldManager: "test", Force: true})
	require.NoError(t, err)
	require.Len(t, applied.GetManagedFields(), 2)
	_, err = in.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":"large"}}`), metav1.PatchOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	list := mustList(t, s.Dynamic(t, "*").Resource(schema.GroupVersionResource{Version: "v1", Resource: "widgets:cccc"}), metav1.ListOptions{})
	require.Len(t, list.Items, 1)
	_, err = s.Dynamic(t, "two").Resource(coreWidgets).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err))
	for _, cluster := range []string{"one", "two"} {
		pods := mustList(t, s.Dynamic(t, cluster).Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}), metav1.ListOptions{})
		require.Equal(t, "PodList", pods.GetKind())
	}
	t.Run("documents", func(t *testing.T) { s.testCoreDocuments(t) })
	t.Run("kubectl", func(t *testing.T) {
		run := s.kubectl(t, "one")
		require.Contains(t, run("explain", "widgets.spec"), "Desired state of the widget.")
		require.Contains(t, run("api-resources", "--api-group="), "widgets")
		require.Contains(t, run("get", "widgets"), "a ")
		manifest := filepath.Join(t.TempDir(), "widget.yaml")
		require.NoError(t, os.WriteFile(manifest, []byte("apiVersion: v1\nkind: Widget\nmetadata:\n  name: b\nspec:\n  size: 2\n"), 0o600))
		require.Contains(t, run("apply", "-f", manifest), "created")
		require.Contains(t, run("apply", "-f", manifest), "unchanged")
		require.Contains(t, run("scale", "widgets", "b", "--replicas", "3"), "scaled")
		require.Contains(t, run("get", "widget", "b", "-o", "jsonpath={.apiVersion} {.spec.size}"), "v1 3")
		require.Contains(t, run("patch", "widget", "b", "--type=json", "-p", `[{"op":"add","path":"/metadata/finalizers","value":["example.com/held"]}]`), "patched")
		require.Contains(t, run("delete", "widget", "b", "--wait=false"), "deleted")
		require.Contains(t, run("patch", "widget", "b", "--type=json", "-p", `[{"op":"remove","path":"/metadata/finalizers"}]`), "patched")
	})
	require.NoError(t, in.Delete(t.Context(), "a", metav1.DeleteOptions{}))
}

func (s *testServer) testCoreDocuments(t *testing.T) {
	for cluster, want := range map[string][]string{"one": {"pods", "widgets", "widgets/scale", "widgets/status"}, "two": {"pods"}} {
		for _, aggregated := range []bool{true, false} {
			client := s.Discovery(t, cluster)
			client.UseLegacyDiscovery = !aggregated
			groups, lists, err := client.ServerGroupsAndResources()
			require.NoError(t, err)
			core := slices.IndexFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == "" })
			require.Len(t, groups[core].Versions, 1)
			var names []string
			for _, list := range lists {
				if list.GroupVersion == "v1" {
					for _, r := range list.APIResources {
						names = append(names, r.Name)
					}
				}
			}
			slices.Sort(names)
			require.Equal(t, want, names, "%s aggregated=%t", cluster, aggregated)
		}
	}
	client, err := rest.UnversionedRESTClientFor(rawConfig(s.ClusterConfig("one")))
	require.NoError(t, err)
	raw, err := client.Get().AbsPath("/api").SetHeader("Accept", "application/json").DoRaw(t.Context())
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"APIVersions","apiVersion":"v1","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"here:1"}]}`, string(raw))

	paths, err := s.Discovery(t, "one").OpenAPIV3().Paths()
	require.NoError(t, err)
	require.Contains(t, paths["api/v1"].ServerRelativeURL(), "/openapi/v3/api/v1?hash=")
	for _, contentType := range []string{"application/json", openapi.ContentTypeOpenAPIV3PB} {
		doc, err := paths["api/v1"].Schema(contentType)
		require.NoError(t, err)
		for _, part := range []string{"Desired state of the widget.", "/api/v1/pods", "/api/v1/namespaces/{namespace}/widgets/{name}/status", "core.v1.WidgetList"} {
			require.Contains(t, string(doc), part)
		}
		require.NotContains(t, string(doc), "/apis/")
	}
	doc, err := paths["api/v1"].Schema("application/json")
	require.NoError(t, err)
	require.Contains(t, string(doc), `"x-kubernetes-group-version-kind":[{"group":"","kind":"Widget","version":"v1"}]`)
	require.NotContains(t, string(doc), `"group":"core"`)
	v2, err := s.Discovery(t, "one").OpenAPISchema()
	require.NoError(t, err)
	found := false
	for _, path := range v2.GetPaths().GetPath() {
		found = found || path.GetName() == "/api/v1/widgets"
	}
	require.True(t, found)
}

// TestNamesOfBuiltIns: built-in resources keep their names in all groups.
func TestNamesOfBuiltIns(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{around: withPods})
	for _, c := range []struct {
		group string
		names apiextensionsv1.CustomResourceDefinitionNames
		taken string
	}{
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList", ShortNames: []string{"wd"}}, ""},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "pods", Singular: "own", Kind: "Own", ListKind: "OwnList"}, "pods"},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "pod", Kind: "Own", ListKind: "OwnList"}, "pod"},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "own", Kind: "Own", ListKind: "OwnList", ShortNames: []string{"o", "pods"}}, "pods"},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "own", Kind: "Pod", ListKind: "OwnList"}, "Pod"},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "own", Kind: "Own", ListKind: "PodList"}, "PodList"},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "own", Kind: "Status", ListKind: "StatusList"}, "Status"},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "own", Kind: "Own", ListKind: "List"}, "List"},
		{"", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "own", Kind: "DeleteOptions", ListKind: "OwnList"}, "DeleteOptions"},
		{"other.org", apiextensionsv1.CustomResourceDefinitionNames{Plural: "pods", Singular: "pod", Kind: "Status", ListKind: "List"}, ""},
		{"apiextensions.k8s.io", apiextensionsv1.CustomResourceDefinitionNames{Plural: "owns", Singular: "own", Kind: "Own", ListKind: "OwnList", ShortNames: []string{"crd"}}, "crd"},
	} {
		release, conflict, err := s.Names().Reserve(t.Context(), "one", "test", nil, []definitions.Wanted{{Group: c.group, Names: &c.names}})
		require.NoError(t, err)
		if c.taken == "" {
			require.Nil(t, conflict, "%+v", c)
			release()
			continue
		}
		require.Equal(t, &definitions.Conflict{Group: c.group, Name: c.taken, By: "the server"}, conflict, "%+v", c)
	}
	// A source that uses such a name does not affect built-in resources.
	pods := coreSchema(t)
	spec := pods.Spec().DeepCopy()
	spec.Names.Plural, spec.Names.Singular = "pods", "pod"
	taking, err := definitions.NewSchema(spec, &spec.Names)
	require.NoError(t, err)
	s.AddSource(newBoundAPIs(map[string]boundAPI{"one": {taking, "pppp"}}))
	list := mustList(t, s.Dynamic(t, "one").Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}), metav1.ListOptions{})
	require.Equal(t, "PodList", list.GetKind())
	resources, err := s.Discovery(t, "one").ServerResourcesForGroupVersion("v1")
	require.NoError(t, err)
	require.Len(t, resources.APIResources, 1)
	require.Equal(t, metav1.Verbs{"list"}, resources.APIResources[0].Verbs)
}

// TestCoreGroupStored: keys of custom resources in the core group differ from those of built-in resources,
// because a later version may have a built-in one of the same name.
func TestCoreGroupStored(t *testing.T) {
	t.Parallel()
	data := customresourcetest.NewData(t)
	s := startServer(t, serverOptions{data: data, sources: []definitions.Source{newBoundAPIs(map[string]boundAPI{"one": coreSchema(t)})}})
	obj := versioned(widget("a", nil), "v1")
	mustCreate(t, s.Dynamic(t, "one").Resource(coreWidgets).Namespace("default"), obj)
	stored, err := data.Server.Client().Client.Get(t.Context(), data.Prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, stored.Kvs, 1)
	require.Equal(t, data.Prefix+"/core/widgets:-custom/:cccc/one/default/a", string(stored.Kvs[0].Key))
	var read struct{ APIVersion, Kind string }
	require.NoError(t, json.Unmarshal(stored.Kvs[0].Value, &read))
	require.Equal(t, "v1 Widget", read.APIVersion+" "+read.Kind)
}

// TestCoreGroupTerminating: while the definition is being deleted, objects cannot be created, but changed, so
// that they can be deleted.
func TestCoreGroupTerminating(t *testing.T) {
	t.Parallel()
	bound := newBoundAPIs(map[string]boundAPI{"one": coreSchema(t)})
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}})
	in := s.Dynamic(t, "one").Resource(coreWidgets).Namespace("default")
	obj := versioned(widget("a", nil), "v1")
	mustCreate(t, in, obj)
	bound.terminate("one")
	obj.SetName("b")
	_, err := in.Create(t.Context(), obj, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	_, err = in.Apply(t.Context(), "b", obj, metav1.ApplyOptions{FieldManager: "test"})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	mustPatch(t, in, "a", `{"metadata":{"labels":{"a":"b"}}}`)
	_, err = in.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":"ending"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	require.NoError(t, in.Delete(t.Context(), "a", metav1.DeleteOptions{}))
}

// TestCoreGroupInformer: an informer for the core group receives objects, across a change of the schema.
func TestCoreGroupInformer(t *testing.T) {
	t.Parallel()
	first := coreSchema(t)
	bound := newBoundAPIs(map[string]boundAPI{"one": first})
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}})
	informers := dynamicinformer.NewDynamicSharedInformerFactory(s.Dynamic(t, "one"), 0)
	lister := informers.ForResource(coreWidgets).Lister()
	informers.Start(t.Context().Done())
	t.Cleanup(informers.Shutdown)
	informers.WaitForCacheSync(t.Context().Done())
	in := s.Dynamic(t, "one").Resource(coreWidgets).Namespace("default")
	create := func(name string) {
		mustCreate(t, in, versioned(widget(name, nil), "v1"))
		require.Eventually(t, func() bool {
			_, err := lister.ByNamespace("default").Get(name)
			return err == nil
		}, deadline, tick, name)
	}
	create("a")
	spec := first.Spec().DeepCopy()
	spec.Versions[0].Schema.OpenAPIV3Schema.Description = "another"
	second, err := definitions.NewSchema(spec, &spec.Names)
	require.NoError(t, err)
	bound.change(definitions.Change{Schema: first.Schema, Identity: "cccc"}, boundAPI{second, "cccc"}, "one")
	create("b")
}

// TestScopeOfEndedRequest captures the scope in requests that have already ended. It returns the scope or
// a timeout, and has no race.
func TestScopeOfEndedRequest(t *testing.T) {
	t.Parallel()
	api := coreSchema(t)
	s := startServer(t, serverOptions{sources: []definitions.Source{newBoundAPIs(map[string]boundAPI{"one": api})}, around: withPods})
	info := &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: "create", APIVersion: "v1", Namespace: "default", Resource: "widgets"}
	used := s.table.Acquire(api.Schema)
	t.Cleanup(func() { s.table.Release(used, time.Now()) })
	scope, err := s.captureScope(t.Context(), info, used)
	require.NoError(t, err)
	require.NotNil(t, scope)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if scope, err = s.captureScope(ended, info, used); scope == nil {
			require.True(t, apierrors.IsTimeout(err), "%v", err)
		}
	}
}
