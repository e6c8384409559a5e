package registry_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/shardplane/shardplane/pkg/registry"
)

// TestUnchanged writes one object of each built-in kind five times by each verb. The manifests omit defaults and spell
// values in other ways than they are stored, because clients such as Flux and Argo CD do so at each reconcile.
func TestUnchanged(t *testing.T) {
	config := newServer(t)
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	groups, err := restmapper.GetAPIGroupResources(newClient(t, config, "application/json").Discovery())
	require.NoError(t, err)
	mapper := restmapper.NewDiscoveryRESTMapper(groups)

	missing := patchable(t, newClient(t, config, "application/json").Discovery())
	for _, manifest := range manifests(t, "testdata/unchanged.yaml") {
		kind := manifest.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		require.NoError(t, err)
		missing.Delete(mapping.Resource)
		var objects dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			objects = client.Resource(mapping.Resource).Namespace(manifest.GetNamespace())
		}
		t.Run(mapping.Resource.GroupResource().String()+"/"+manifest.GetName(), func(t *testing.T) { writeUnchanged(t, objects, manifest) })
	}
	require.Empty(t, missing, "kinds without a manifest")
}

// writeUnchanged creates the object of a manifest, and then writes it by each verb without a change.
func writeUnchanged(t *testing.T, objects dynamic.ResourceInterface, manifest *unstructured.Unstructured) {
	t.Helper()
	ctx, name := t.Context(), manifest.GetName()
	content, err := json.Marshal(manifest)
	require.NoError(t, err)
	patch := func(kind types.PatchType, content []byte) (*unstructured.Unstructured, error) {
		return objects.Patch(ctx, name, kind, content, metav1.PatchOptions{FieldManager: "other"})
	}
	for _, verb := range []struct {
		name  string
		write func(before *unstructured.Unstructured) (*unstructured.Unstructured, error)
	}{
		{"apply", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return objects.Apply(ctx, name, manifest, metav1.ApplyOptions{FieldManager: "tester"})
		}},
		{"put", func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return objects.Update(ctx, before, metav1.UpdateOptions{FieldManager: "other"})
		}},
		{"put of the manifest", func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			put := manifest.DeepCopy()
			put.SetResourceVersion(before.GetResourceVersion())
			put.SetAnnotations(before.GetAnnotations())
			return objects.Update(ctx, put, metav1.UpdateOptions{FieldManager: "other"})
		}},
		{"json patch", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return patch(types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/name","value":"`+name+`"}]`))
		}},
		{"merge patch", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return patch(types.MergePatchType, content)
		}},
		{"strategic merge patch", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return patch(types.StrategicMergePatchType, content)
		}},
	} {
		before, err := objects.Apply(ctx, name, manifest, metav1.ApplyOptions{FieldManager: "tester", Force: true})
		require.NoError(t, err, verb.name)
		// The first write may change the manager of a field.
		before, err = verb.write(before)
		require.NoError(t, err, verb.name)
		before = postdate(t, objects, before, verb.name)
		for range 5 {
			after, err := verb.write(before)
			require.NoError(t, err, verb.name)
			require.Equal(t, before, after, verb.name)
		}
	}
}

// postdate changes the timestamps of the field managers, which have a resolution of one second: writes within the same
// one would hide a change. They can only be changed together with something else. They are in the future because field
// managers are sorted by time, and a write must not move its manager behind the one of this patch.
func postdate(t *testing.T, objects dynamic.ResourceInterface, object *unstructured.Unstructured, changed string) *unstructured.Unstructured {
	t.Helper()
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value string `json:"value"`
	}
	operations := []operation{{"add", "/metadata/annotations/changed", changed}}
	for i := range object.GetManagedFields() {
		operations = append(operations, operation{"replace", fmt.Sprintf("/metadata/managedFields/%d/time", i), "2126-01-02T03:04:05Z"})
	}
	content, err := json.Marshal(operations)
	require.NoError(t, err)
	postdated, err := objects.Patch(t.Context(), object.GetName(), types.JSONPatchType, content, metav1.PatchOptions{FieldManager: "annotator"})
	require.NoError(t, err)
	return postdated
}

// manifests reads a file of objects.
func manifests(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		object := map[string]any{}
		if err := decoder.Decode(&object); err == io.EOF { //nolint:errorlint // the decoder returns it as it is
			return all
		}
		require.NoError(t, err)
		all = append(all, &unstructured.Unstructured{Object: object})
	}
}

// patchable returns the built-in resources that can be patched.
func patchable(t *testing.T, client discovery.DiscoveryInterface) sets.Set[schema.GroupVersionResource] {
	t.Helper()
	found := sets.New[schema.GroupVersionResource]()
	for _, resource := range registry.Resources() {
		list, err := client.ServerResourcesForGroupVersion(resource.GroupVersion().String())
		require.NoError(t, err)
		for _, r := range list.APIResources {
			if r.Name == resource.Resource && sets.New(r.Verbs...).Has("patch") {
				found.Insert(resource)
			}
		}
	}
	return found
}
