package hub

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The setters of shared objects work on a copy of their own, since the object
// is that of the watch cache. Nothing is known to call them; who does must not
// share the object with others, as with upstream's.

// own returns the object for changing it.
func (s *cachingObject) own() object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.owned {
		if copied, ok := s.object.DeepCopyObject().(object); ok {
			s.object, s.owned = copied, true
		}
	}
	s.encoded = nil
	return s.object
}

// SetNamespace implements metav1.Object.
func (s *cachingObject) SetNamespace(namespace string) { s.own().SetNamespace(namespace) }

// SetName implements metav1.Object.
func (s *cachingObject) SetName(name string) { s.own().SetName(name) }

// SetGenerateName implements metav1.Object.
func (s *cachingObject) SetGenerateName(name string) { s.own().SetGenerateName(name) }

// SetUID implements metav1.Object.
func (s *cachingObject) SetUID(uid types.UID) { s.own().SetUID(uid) }

// SetResourceVersion implements metav1.Object.
func (s *cachingObject) SetResourceVersion(version string) { s.own().SetResourceVersion(version) }

// SetGeneration implements metav1.Object.
func (s *cachingObject) SetGeneration(generation int64) { s.own().SetGeneration(generation) }

// SetSelfLink implements metav1.Object.
func (s *cachingObject) SetSelfLink(link string) { s.own().SetSelfLink(link) }

// SetCreationTimestamp implements metav1.Object.
func (s *cachingObject) SetCreationTimestamp(timestamp metav1.Time) {
	s.own().SetCreationTimestamp(timestamp)
}

// SetDeletionTimestamp implements metav1.Object.
func (s *cachingObject) SetDeletionTimestamp(timestamp *metav1.Time) {
	s.own().SetDeletionTimestamp(timestamp)
}

// SetDeletionGracePeriodSeconds implements metav1.Object.
func (s *cachingObject) SetDeletionGracePeriodSeconds(seconds *int64) {
	s.own().SetDeletionGracePeriodSeconds(seconds)
}

// SetLabels implements metav1.Object.
func (s *cachingObject) SetLabels(labels map[string]string) { s.own().SetLabels(labels) }

// SetAnnotations implements metav1.Object.
func (s *cachingObject) SetAnnotations(annotations map[string]string) {
	s.own().SetAnnotations(annotations)
}

// SetFinalizers implements metav1.Object.
func (s *cachingObject) SetFinalizers(finalizers []string) { s.own().SetFinalizers(finalizers) }

// SetOwnerReferences implements metav1.Object.
func (s *cachingObject) SetOwnerReferences(references []metav1.OwnerReference) {
	s.own().SetOwnerReferences(references)
}

// SetManagedFields implements metav1.Object.
func (s *cachingObject) SetManagedFields(fields []metav1.ManagedFieldsEntry) {
	s.own().SetManagedFields(fields)
}
