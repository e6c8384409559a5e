package kinds_test

import (
	"fmt"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// ClusterCachedResources have their own type of slices.
func ExampleClusterCachedResourceEndpointSlice() {
	all := kinds.ClusterCachedResourceEndpointSliceList{Items: []kinds.ClusterCachedResourceEndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Name: "flavors"},
		Spec: kinds.ClusterCachedResourceEndpointSliceSpec{
			ClusterCachedResource: cachev1alpha1.CachedResourceReference{Name: "flavors"},
			APIExport:             cachev1alpha1.ExportBindingReference{Name: "machines"},
		},
	}}}
	for _, slice := range all.Items {
		fmt.Println(kinds.ClusterCachedResourceEndpointSlices.Resource, slice.Spec.ClusterCachedResource.Name, slice.Spec.APIExport.Name)
	}
	// Output: clustercachedresourceendpointslices flavors machines
}
