package replication

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestDiffering holds which fields are named of a replica that is different.
func TestDiffering(t *testing.T) {
	r := Resource{shard: "amber"}
	fields := func(r Resource, edit func(*unstructured.Unstructured)) []string {
		return differing("", canonical(r.desired(localObject())), canonical(replicaOf(localObject(), edit)))
	}
	require.Empty(t, fields(r, func(o *unstructured.Unstructured) { o.SetResourceVersion("100") }))
	require.Equal(t, []string{"extra", "metadata.annotations.custom", "metadata.annotations.more", "metadata.finalizers", "metadata.uid", "spec.baseURL", "status"},
		fields(r, func(o *unstructured.Unstructured) {
			annotations := o.GetAnnotations()
			delete(annotations, "custom")
			annotations["more"] = "x"
			o.SetAnnotations(annotations)
			o.SetFinalizers(nil)
			o.SetUID("x")
			o.Object["extra"], o.Object["status"] = "x", nil
			require.NoError(t, unstructured.SetNestedField(o.Object, "https://other", "spec", "baseURL"))
		}))
}
