package apis

import (
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ClusterCachedResourceEndpointSlice is the CachedResourceEndpointSlice of a ClusterCachedResource, missing in the SDK.
type ClusterCachedResourceEndpointSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   ClusterCachedResourceEndpointSliceSpec          `json:"spec"`
	Status cachev1alpha1.CachedResourceEndpointSliceStatus `json:"status"`
}

// ClusterCachedResourceEndpointSliceSpec selects the endpoints, like cachev1alpha1.CachedResourceEndpointSliceSpec.
type ClusterCachedResourceEndpointSliceSpec struct {
	ClusterCachedResource cachev1alpha1.CachedResourceReference `json:"clusterCachedResource"`
	APIExport             cachev1alpha1.ExportBindingReference  `json:"export"`
	Partition             string                                `json:"partition,omitempty"`
}

// ClusterCachedResourceEndpointSliceList is a list of ClusterCachedResourceEndpointSlices.
type ClusterCachedResourceEndpointSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ClusterCachedResourceEndpointSlice `json:"items"`
}

// GetConditions implements conditions.Getter.
func (s *ClusterCachedResourceEndpointSlice) GetConditions() conditionsv1alpha1.Conditions {
	return s.Status.Conditions
}

// SetConditions implements conditions.Setter.
func (s *ClusterCachedResourceEndpointSlice) SetConditions(conditions conditionsv1alpha1.Conditions) {
	s.Status.Conditions = conditions
}

// DeepCopy returns a deep copy.
func (s *ClusterCachedResourceEndpointSlice) DeepCopy() *ClusterCachedResourceEndpointSlice {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	s.Status.DeepCopyInto(&c.Status)
	return &c
}

// DeepCopyObject implements runtime.Object.
func (s *ClusterCachedResourceEndpointSlice) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (l *ClusterCachedResourceEndpointSliceList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]ClusterCachedResourceEndpointSlice, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopy()
	}
	return &c
}
