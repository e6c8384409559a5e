package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// sizeAnnotation is the size to which a definition is enlarged with unused fields before it is
// applied.
const sizeAnnotation = "conformance.example.com/size"

// TestKnownSets applies sets of definitions like those of popular projects in several logical
// clusters at once, and uses them immediately.
func TestKnownSets(t *testing.T) {
	admin := sharedShard.Get(t).Shard(0)
	files, err := filepath.Glob("testdata/sets/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	t.Run("sets", func(t *testing.T) {
		for _, file := range files {
			for _, cluster := range []string{"a", "b", "c"} {
				t.Run(filepath.Base(file)+" in "+cluster, func(t *testing.T) {
					t.Parallel()
					useSet(newUser(t, admin, cluster, ""), file)
				})
			}
		}
	})
}

func useSet(u *user, file string) {
	plurals := map[string]string{}
	for _, o := range readManifests(u.t, file) {
		if o.GetKind() == "CustomResourceDefinition" {
			d := u.applyDefinition(enlarge(u.t, o))
			plurals[d.Spec.Names.Kind] = d.Spec.Names.Plural
			continue
		}
		client := u.clientFor(o, plurals[o.GetKind()])
		created, err := client.Create(u.t.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		require.NoError(u.t, err, o.GetName())
		requireSubset(u.t, o.Object["spec"], created.Object["spec"])

		applied := o.DeepCopy()
		applied.SetLabels(map[string]string{"applied": "yes"})
		_, err = client.Apply(u.t.Context(), o.GetName(), applied, metav1.ApplyOptions{FieldManager: "set", Force: true})
		require.NoError(u.t, err)
		list := u.list(client, metav1.ListOptions{LabelSelector: "applied=yes"})
		require.Len(u.t, list.Items, 1)

		broken := o.DeepCopy()
		broken.SetName("broken")
		broken.Object["spec"] = map[string]any{"nonsense": true}
		_, err = client.Create(u.t.Context(), broken, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		require.True(u.t, apierrors.IsBadRequest(err) || apierrors.IsInvalid(err), "%v", err)
	}
}

// applyDefinition creates a definition and lists its resources immediately.
func (u *user) applyDefinition(o *unstructured.Unstructured) *crd {
	u.t.Helper()
	var d crd
	data, err := o.MarshalJSON()
	require.NoError(u.t, err)
	require.NoError(u.t, yaml.Unmarshal(data, &d))
	created, err := u.tryDefine(&d)
	require.NoError(u.t, err, o.GetName())
	require.Equal(u.t, "True InitialNamesAccepted", condition(created, "Established"))
	for i := range d.Spec.Versions {
		if v := &d.Spec.Versions[i]; v.Served {
			resource := schema.GroupVersionResource{Group: d.Spec.Group, Version: v.Name, Resource: d.Spec.Names.Plural}
			_, err := u.dyn.Resource(resource).List(u.t.Context(), metav1.ListOptions{})
			require.NoError(u.t, err, "%s", resource)
		}
	}
	return created
}

// clientFor returns the client for the resource of an object.
func (u *user) clientFor(o *unstructured.Unstructured, plural string) dynamic.ResourceInterface {
	resource := o.GroupVersionKind().GroupVersion().WithResource(plural)
	if ns := o.GetNamespace(); ns != "" {
		return u.dyn.Resource(resource).Namespace(ns)
	}
	return u.dyn.Resource(resource)
}

// enlarge adds fields to a definition up to the size in its annotation.
func enlarge(t *testing.T, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	size, err := strconv.Atoi(o.GetAnnotations()[sizeAnnotation])
	require.NoError(t, err)
	versions, _, err := unstructured.NestedSlice(o.Object, "spec", "versions")
	require.NoError(t, err)
	filler := bigCRD(t, "filler.example.com", 0, size/len(versions)).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	var decoded map[string]any
	data, err := yaml.Marshal(filler)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(data, &decoded))
	for i := range versions {
		version, ok := versions[i].(map[string]any)
		require.True(t, ok)
		require.NoError(t, unstructured.SetNestedField(version, decoded, "schema", "openAPIV3Schema", "properties", "spec", "properties", "unused"))
	}
	require.NoError(t, unstructured.SetNestedSlice(o.Object, versions, "spec", "versions"))
	return o
}

// requireSubset checks that got contains all fields of want.
func requireSubset(t *testing.T, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		of, ok := got.(map[string]any)
		require.True(t, ok, "%v is not an object", got)
		for k, v := range want {
			requireSubset(t, v, of[k])
		}
	case []any:
		of, ok := got.([]any)
		require.True(t, ok, "%v is not a list", got)
		require.Len(t, of, len(want))
		for i := range want {
			requireSubset(t, want[i], of[i])
		}
	default:
		require.Equal(t, want, got)
	}
}

func readManifests(t testing.TB, file string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	// Each document needs its own decoder because of anchors.
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var all []*unstructured.Unstructured
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		data, err := yaml.YAMLToJSON(document)
		require.NoError(t, err)
		if !bytes.Contains(data, []byte(`"kind":`)) {
			continue // comments, or data of other tools
		}
		o := &unstructured.Unstructured{}
		require.NoError(t, o.UnmarshalJSON(data), file)
		all = append(all, o)
	}
}
