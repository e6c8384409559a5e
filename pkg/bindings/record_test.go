package bindings

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/heap"
)

// decoded returns a binding as the informer gets it, which shares nothing with others.
func decoded(cluster, export, schema string) *apisv1alpha2.APIBinding {
	s := func(text string) string { return string([]byte(text)) }
	return &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: s("b"), UID: "uid", ResourceVersion: "1", Finalizers: []string{s(apis.BindingFinalizer)},
			Annotations: map[string]string{logicalcluster.AnnotationKey: cluster, apis.MirroredPrefix + "note": s("hello"), "other": "x"},
			Labels:      map[string]string{apis.ExportLabel: s(export + "-label"), "other": "x"},
		},
		Spec: apisv1alpha2.APIBindingSpec{Reference: apisv1alpha2.BindingReference{
			Export: &apisv1alpha2.ExportBindingReference{Path: s("root:provider"), Name: s(export)},
		}},
		Status: apisv1alpha2.APIBindingStatus{
			Phase: apisv1alpha2.APIBindingPhaseBound, APIExportClusterName: s("provider"),
			Conditions: conditionsv1alpha1.Conditions{{Type: "Ready", Status: "True", LastTransitionTime: metav1.Now()}},
			BoundResources: []apisv1alpha2.BoundAPIResource{{
				Group: s("example.org"), Resource: s("widgets"), StorageVersions: []string{s("v1")},
				Schema: apisv1alpha2.BoundAPIResourceSchema{Name: s(schema), UID: s(schema + "-uid"), IdentityHash: s("hash")},
			}},
		},
	}
}

func withoutTimes(status apisv1alpha2.APIBindingStatus) apisv1alpha2.APIBindingStatus {
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return status
}

// offline returns an index without a server.
func offline(t *testing.T) *Index {
	t.Helper()
	local, err := client.NewFactory(&rest.Config{Host: "https://127.0.0.1:1"})
	require.NoError(t, err)
	t.Cleanup(local.CloseIdleConnections)
	x, err := NewBindingIndex(Alone(Config{Local: local}))
	require.NoError(t, err)
	return x
}

// TestSharing: equal content is stored once, and removed with the last binding.
func TestSharing(t *testing.T) {
	x := offline(t)
	put := func(cluster, export, schema string) *apisv1alpha2.APIBinding {
		b, err := x.slim(decoded(cluster, export, schema))
		require.NoError(t, err)
		x.put(b, initialRevision)
		return b
	}
	first := put("one", "a", "s1")
	require.Equal(t, &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: "b", UID: "uid", ResourceVersion: "1",
			Annotations: map[string]string{logicalcluster.AnnotationKey: "one", apis.MirroredPrefix + "note": "hello"},
			Labels:      map[string]string{apis.ExportLabel: "a-label"},
		},
		Spec: decoded("one", "a", "s1").Spec, Status: withoutTimes(decoded("one", "a", "s1").Status),
	}, first)
	// The first one was added before there was anything to share.
	first = put("shared", "a", "s1")
	for i := range 10 {
		other := put(fmt.Sprint(i), "a", "s1")
		require.Same(t, first.Spec.Reference.Export, other.Spec.Reference.Export)
		require.Same(t, &first.Status.BoundResources[0], &other.Status.BoundResources[0])
		require.Same(t, &first.Status.Conditions[0], &other.Status.Conditions[0])
		require.Equal(t, reflect.ValueOf(first.Labels).Pointer(), reflect.ValueOf(other.Labels).Pointer())
	}
	require.Len(t, x.lists, 1)

	// Different bindings do not share content.
	require.Equal(t, "s2", put("one", "a", "s2").Status.BoundResources[0].Schema.Name)
	require.Equal(t, "b", put("two", "b", "s1").Spec.Reference.Export.Name)
	require.Len(t, x.lists, 3)
	r, _, ok := x.find("two", schema.GroupResource{Group: "example.org", Resource: "widgets"})
	require.True(t, ok)
	require.Equal(t, "b", r.export)
	for _, cluster := range []logicalcluster.Name{"shared", "one", "two", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		x.replace(cluster, "b", nil, initialRevision)
	}
	require.Empty(t, x.lists)
	require.Empty(t, x.identities)
}

// TestBytes: index and informer store little per binding if many bindings have the same export.
func TestBytes(t *testing.T) {
	heap.Skip(t)
	const bindings, most = 10_000, 2 << 10
	x := offline(t)
	kept := make([]*apisv1alpha2.APIBinding, bindings)
	before := heap.InUse()
	for i := range kept {
		slim, err := x.slim(decoded(fmt.Sprintf("c%d", i), "widgets", "v1"))
		require.NoError(t, err)
		kept[i] = slim
		x.put(slim, initialRevision)
	}
	each := (heap.InUse() - before) / bindings
	t.Logf("%d bytes each", each)
	require.Less(t, each, int64(most))
	runtime.KeepAlive(kept)
	runtime.KeepAlive(x)
}
