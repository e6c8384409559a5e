package bindings

import (
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLike: a new binding copies other bindings if they have bound everything that the export offers now. The schemas
// count as pinned.
func TestLike(t *testing.T) {
	t.Parallel()
	x := offline(t)
	put := func(cluster, name string, upToDate bool) {
		b := decoded(cluster, "a", name)
		if upToDate {
			conditions.MarkTrue(b, apisv1alpha2.BindingUpToDate)
		}
		x.put(b, initialRevision)
	}
	export := func(name string) *apisv1alpha2.APIExport {
		return &apisv1alpha2.APIExport{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"kcp.io/cluster": "provider"}},
			Spec: apisv1alpha2.APIExportSpec{Resources: []apisv1alpha2.ResourceSchema{
				{Group: "example.org", Name: "widgets", Schema: name},
			}},
			Status: apisv1alpha2.APIExportStatus{IdentityHash: "hash"},
		}
	}
	like := func(e *apisv1alpha2.APIExport) bool {
		_, ok := x.Like(t.Context(), e)
		return ok
	}
	w := &shard{Index: x, t: t}
	w.schema("s1-uid", widgets, "a", 1)
	require.False(t, like(export("s1")), "no binding exists, so none may be copied")
	put("one", "s1", false)
	require.False(t, like(export("s1")), "an outdated binding must not be copied")
	put("one", "s1", true)
	resources, ok := x.Like(t.Context(), export("s1"))
	require.True(t, ok)
	require.Equal(t, decoded("one", "a", "s1").Status.BoundResources[0].Schema, resources[0].Schema)
	require.Len(t, resources, 1)
	require.False(t, like(export("s2")), "a binding with another schema than the export must not be copied")
	other := export("s1")
	other.Status.IdentityHash = "another"
	require.False(t, like(other))
	virtual := export("s1")
	virtual.Spec.Resources[0].Storage.Virtual = &apisv1alpha2.ResourceSchemaStorageVirtual{}
	require.False(t, like(virtual), "a binding with another storage than the export must not be copied")
	x.replace("one", "b", nil, initialRevision)
	require.False(t, x.used("s1-uid"))
	require.True(t, x.isPinned("s1-uid"), "the schema must be kept until the new binding uses it")
	require.Empty(t, x.lists)
	require.Empty(t, x.complete)
	put("one", "s2", true)
	require.False(t, like(export("s2")), "the schema cannot be read")
}
