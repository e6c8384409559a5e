package cachedresource

import (
	"context"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestMaxInCluster checks the limit for both kinds together. Creates are rejected if the objects cannot be
// counted.
func TestMaxInCluster(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	require.NoError(t, cachev1alpha1.AddToScheme(scheme))
	server := clienttest.New(t, scheme)
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	config := Config{Clients: factory, BuiltIn: func(context.Context, schema.GroupResource) bool { return false }}

	cached := func(cluster logicalcluster.Name, plural string) *cachev1alpha1.CachedResource {
		return &cachev1alpha1.CachedResource{
			ObjectMeta: metav1.ObjectMeta{Name: plural, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}},
			Spec:       cachev1alpha1.CachedResourceSpec{GroupVersionResource: cachev1alpha1.GroupVersionResource{Group: "example.org", Version: "v1", Resource: plural}},
		}
	}
	admit := func(cluster logicalcluster.Name, plural string, names schema.GroupVersionResource, old *cachev1alpha1.CachedResource) error {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached(cluster, plural))
		require.NoError(t, err)
		operation, before := admission.Create, runtime.Object(nil)
		if old != nil {
			of, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
			require.NoError(t, err)
			operation, before = admission.Update, &unstructured.Unstructured{Object: of}
		}
		return NewCachedResource(config).Validate(request.WithClusterName(t.Context(), cluster), admission.NewAttributesRecord(&unstructured.Unstructured{Object: content}, before,
			schema.GroupVersionKind{Group: names.Group, Kind: "CachedResource"}, "", plural, names, "", operation, nil, false, nil), nil)
	}
	one, other := kinds.CachedResources.GroupVersionResource, kinds.ClusterCachedResources.GroupVersionResource
	for i := range maxInCluster - 1 {
		server.Put(t, []schema.GroupVersionResource{one, other}[i%2], cached("full", fmt.Sprint("r", i)))
	}
	require.NoError(t, admit("full", "last", one, nil))
	require.NoError(t, admit("full", "last", other, nil))
	server.Put(t, other, cached("full", "last"))
	for _, names := range []schema.GroupVersionResource{one, other} {
		err := admit("full", "more", names, nil)
		require.True(t, apierrors.IsForbidden(err), err)
		require.ErrorContains(t, err, "the workspace has 64 cached resources, at most 64 allowed: delete one")
		require.NoError(t, admit("empty", "more", names, nil), "objects of another logical cluster must not be counted")
	}
	require.NoError(t, admit("full", "last", other, cached("full", "last")), "an existing object must be updatable")
	config.Disabled = true
	require.ErrorContains(t, admit("empty", "more", one, nil), "the feature gate CachedResources of the shard is disabled")
	require.NoError(t, admit("full", "last", other, cached("full", "last")), "an existing object must be updatable")
	config.Disabled = false
	server.Delete(t, one, "", "full", "", "r0")
	require.NoError(t, admit("full", "more", one, nil))
	err = admit("full", "r1", one, nil)
	require.True(t, apierrors.IsForbidden(err), err)
	require.ErrorContains(t, err, "is already cached by the clustercachedresources r1: delete or change that object first")

	server.Fail(503)
	err = admit("empty", "more", one, nil)
	require.True(t, apierrors.IsServiceUnavailable(err), err)
	_, later := apierrors.SuggestsClientDelay(err)
	require.True(t, later, err)
	require.ErrorContains(t, err, "try again")
}
