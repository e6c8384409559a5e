package registry_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
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

// unchangedSubresources contains the content for each subresource of a built-in kind.
var unchangedSubresources = map[string]string{
	"namespaces/status":                   `{"status":{"phase":"Active","conditions":[{"type":"Noted","status":"True","reason":"R","message":"m"}]}}`,
	"namespaces/finalize":                 `{"spec":{"finalizers":["kubernetes"]}}`,
	"resourcequotas/status":               `{"status":{"hard":{"cpu":"1000m"},"used":{"cpu":"0000m"}}}`,
	"certificatesigningrequests/status":   `{"status":{"conditions":[{"type":"Failed","status":"True","reason":"R","message":"m"}]}}`,
	"certificatesigningrequests/approval": `{"status":{"conditions":[{"type":"Approved","status":"True","reason":"R","message":"m"},{"type":"Failed","status":"True","reason":"R","message":"m"}]}}`,
	"validatingadmissionpolicies/status":  `{"status":{"typeChecking":{"expressionWarnings":[{"fieldRef":"spec.validations[0].expression","warning":"w"}]},"conditions":[{"type":"Noted","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`,
}

// TestUnchanged writes one object of each built-in kind, and its subresources, five times by each verb. The manifests omit
// defaults and spell values in other ways than they are stored, because clients such as Flux and Argo CD do so at each
// reconcile.
func TestUnchanged(t *testing.T) {
	config := newServer(t)
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	groups, err := restmapper.GetAPIGroupResources(newClient(t, config, "application/json").Discovery())
	require.NoError(t, err)
	mapper := restmapper.NewDiscoveryRESTMapper(groups)

	verbs := writable(t, newClient(t, config, "application/json").Discovery())
	missing := sets.KeySet(verbs)
	for _, manifest := range manifests(t, "testdata/unchanged.yaml") {
		kind := manifest.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		require.NoError(t, err)
		var objects dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			objects = client.Resource(mapping.Resource).Namespace(manifest.GetNamespace())
		}
		w := writes{objects: objects, verbs: verbs[mapping.Resource], manifest: manifest}
		missing.Delete(mapping.Resource)
		t.Run(mapping.Resource.GroupResource().String()+"/"+manifest.GetName(), w.requireUnchanged)
		for _, path := range slices.Sorted(maps.Keys(unchangedSubresources)) {
			resource, subresource, _ := strings.Cut(path, "/")
			whole := mapping.Resource.GroupVersion().WithResource(path)
			if resource != mapping.Resource.Resource || verbs[whole] == nil {
				continue
			}
			missing.Delete(whole)
			w.manifest = &unstructured.Unstructured{}
			require.NoError(t, json.Unmarshal([]byte(unchangedSubresources[path]), &w.manifest.Object))
			w.manifest.SetGroupVersionKind(kind)
			w.manifest.SetName(manifest.GetName())
			w.subresources, w.verbs = []string{subresource}, verbs[whole]
			t.Run(mapping.Resource.GroupResource().String()+"/"+manifest.GetName()+"/"+subresource, w.requireUnchanged)
		}
	}
	require.Empty(t, missing, "kinds and subresources without a manifest")
}

// writes are the writes of an object, or of a subresource.
type writes struct {
	objects      dynamic.ResourceInterface
	subresources []string // one, or none
	verbs        sets.Set[string]
	manifest     *unstructured.Unstructured
}

// putManifest puts the manifest of an object, or the part of it that is in the manifest of a subresource.
func (w writes) putManifest(t *testing.T, before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	put := w.manifest.DeepCopy()
	put.SetResourceVersion(before.GetResourceVersion())
	put.SetAnnotations(before.GetAnnotations())
	if w.subresources != nil {
		put = before.DeepCopy()
		for _, part := range []string{"spec", "status"} {
			if content, ok := w.manifest.DeepCopy().Object[part]; ok {
				put.Object[part] = content
			}
		}
	}
	return w.objects.Update(t.Context(), put, metav1.UpdateOptions{FieldManager: "other"}, w.subresources...)
}

// requireUnchanged creates the object of a manifest, or writes the subresource, and then writes it by each verb without a change.
func (w writes) requireUnchanged(t *testing.T) {
	ctx, name := t.Context(), w.manifest.GetName()
	content, err := json.Marshal(w.manifest)
	require.NoError(t, err)
	apply := func(force bool) (*unstructured.Unstructured, error) {
		return w.objects.Apply(ctx, name, w.manifest, metav1.ApplyOptions{FieldManager: "tester", Force: force}, w.subresources...)
	}
	patch := func(kind types.PatchType, content []byte) (*unstructured.Unstructured, error) {
		return w.objects.Patch(ctx, name, kind, content, metav1.PatchOptions{FieldManager: "other"}, w.subresources...)
	}
	for _, verb := range []struct {
		name, verb string
		write      func(before *unstructured.Unstructured) (*unstructured.Unstructured, error)
	}{
		{"apply", "patch", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) { return apply(false) }},
		{"put", "update", func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return w.objects.Update(ctx, before, metav1.UpdateOptions{FieldManager: "other"}, w.subresources...)
		}},
		{"put of the manifest", "update", func(before *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return w.putManifest(t, before)
		}},
		{"json patch", "patch", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return patch(types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/name","value":"`+name+`"}]`))
		}},
		{"merge patch", "patch", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return patch(types.MergePatchType, content)
		}},
		{"strategic merge patch", "patch", func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return patch(types.StrategicMergePatchType, content)
		}},
	} {
		if !w.verbs.Has(verb.verb) {
			continue
		}
		before, err := w.objects.Get(ctx, name, metav1.GetOptions{})
		if w.verbs.Has("patch") {
			before, err = apply(true)
		}
		require.NoError(t, err, verb.name)
		// The first write may change the manager of a field.
		before, err = verb.write(before)
		require.NoError(t, err, verb.name)
		before = postdate(t, w.objects, before, verb.name)
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

// writable returns the verbs with which the built-in resources and subresources can be changed.
func writable(t *testing.T, client discovery.DiscoveryInterface) map[schema.GroupVersionResource]sets.Set[string] {
	t.Helper()
	found := map[schema.GroupVersionResource]sets.Set[string]{}
	for _, resource := range registry.Resources() {
		list, err := client.ServerResourcesForGroupVersion(resource.GroupVersion().String())
		require.NoError(t, err)
		for _, r := range list.APIResources {
			if verbs := sets.New(r.Verbs...); strings.Split(r.Name, "/")[0] == resource.Resource && verbs.HasAny("patch", "update") {
				found[resource.GroupVersion().WithResource(r.Name)] = verbs
			}
		}
	}
	return found
}
