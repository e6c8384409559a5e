package apis_test

import (
	"testing"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
)

// TestReplicatedOf: the cached resource and its publication have the same resource name.
func TestReplicatedOf(t *testing.T) {
	cached := &cachev1alpha1.CachedResource{}
	cached.Spec.GroupVersionResource = cachev1alpha1.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "flavors"}
	cached.Status.IdentityHash = "f00"
	want := schema.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "flavors:f00"}
	require.Equal(t, want, apis.ReplicatedOf(cached))
	published := &apis.Publication{Resource: apis.CachedResourceOf(cached), Identity: "f00"}
	require.Equal(t, want, published.Replicated())
	require.Equal(t, "flavors", published.Resource.Resource, "the resource of the publication has changed")
}
