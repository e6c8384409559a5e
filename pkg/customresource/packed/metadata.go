package packed

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var _ metav1.Object = (*Object)(nil)

const metadataField = "metadata"

func (o *Object) field(name string) Value { return o.Value().Field(metadataField).Field(name) }

// only returns an object with only one field of the metadata, if it exists.
func (o *Object) only(name string) *unstructured.Unstructured {
	field := o.field(name)
	if field.IsZero() {
		return &unstructured.Unstructured{}
	}
	return &unstructured.Unstructured{Object: map[string]any{metadataField: map[string]any{name: field.Any()}}}
}

// GetNamespace implements metav1.Object.
func (o *Object) GetNamespace() string { return o.field("namespace").Text() }

// GetName implements metav1.Object.
func (o *Object) GetName() string { return o.field("name").Text() }

// GetGenerateName implements metav1.Object.
func (o *Object) GetGenerateName() string { return o.field("generateName").Text() }

// GetUID implements metav1.Object.
func (o *Object) GetUID() types.UID { return types.UID(o.field("uid").Text()) }

// GetResourceVersion implements metav1.Object.
func (o *Object) GetResourceVersion() string { return o.resourceVersion }

// GetGeneration implements metav1.Object.
func (o *Object) GetGeneration() int64 { return o.only("generation").GetGeneration() }

// GetSelfLink implements metav1.Object.
func (o *Object) GetSelfLink() string { return o.field("selfLink").Text() }

// GetCreationTimestamp implements metav1.Object.
func (o *Object) GetCreationTimestamp() metav1.Time {
	return o.only("creationTimestamp").GetCreationTimestamp()
}

// GetDeletionTimestamp implements metav1.Object.
func (o *Object) GetDeletionTimestamp() *metav1.Time {
	return o.only("deletionTimestamp").GetDeletionTimestamp()
}

// GetDeletionGracePeriodSeconds implements metav1.Object.
func (o *Object) GetDeletionGracePeriodSeconds() *int64 {
	return o.only("deletionGracePeriodSeconds").GetDeletionGracePeriodSeconds()
}

// GetLabels implements metav1.Object.
func (o *Object) GetLabels() map[string]string { return o.field("labels").Texts() }

// GetAnnotations implements metav1.Object.
func (o *Object) GetAnnotations() map[string]string { return o.field("annotations").Texts() }

// Annotation returns one annotation without creating a map of all.
func (o *Object) Annotation(name string) string { return o.field("annotations").Field(name).Text() }

// GetFinalizers implements metav1.Object.
func (o *Object) GetFinalizers() []string { return o.only("finalizers").GetFinalizers() }

// GetOwnerReferences implements metav1.Object.
func (o *Object) GetOwnerReferences() []metav1.OwnerReference {
	return o.only("ownerReferences").GetOwnerReferences()
}

// GetManagedFields implements metav1.Object.
func (o *Object) GetManagedFields() []metav1.ManagedFieldsEntry {
	return o.only("managedFields").GetManagedFields()
}

// SetNamespace implements metav1.Object.
func (o *Object) SetNamespace(namespace string) { change(o, (*content).SetNamespace, namespace) }

// SetName implements metav1.Object.
func (o *Object) SetName(name string) { change(o, (*content).SetName, name) }

// SetGenerateName implements metav1.Object.
func (o *Object) SetGenerateName(name string) { change(o, (*content).SetGenerateName, name) }

// SetUID implements metav1.Object.
func (o *Object) SetUID(uid types.UID) { change(o, (*content).SetUID, uid) }

// SetResourceVersion implements metav1.Object.
func (o *Object) SetResourceVersion(version string) { o.resourceVersion = version }

// SetGeneration implements metav1.Object.
func (o *Object) SetGeneration(generation int64) { change(o, (*content).SetGeneration, generation) }

// SetSelfLink implements metav1.Object. Storage clears the link of each object that it reads, which
// seldom has one.
func (o *Object) SetSelfLink(link string) {
	if link != "" || !o.field("selfLink").IsZero() {
		change(o, (*content).SetSelfLink, link)
	}
}

// SetCreationTimestamp implements metav1.Object.
func (o *Object) SetCreationTimestamp(timestamp metav1.Time) {
	change(o, (*content).SetCreationTimestamp, timestamp)
}

// SetDeletionTimestamp implements metav1.Object.
func (o *Object) SetDeletionTimestamp(timestamp *metav1.Time) {
	change(o, (*content).SetDeletionTimestamp, timestamp)
}

// SetDeletionGracePeriodSeconds implements metav1.Object.
func (o *Object) SetDeletionGracePeriodSeconds(seconds *int64) {
	change(o, (*content).SetDeletionGracePeriodSeconds, seconds)
}

// SetLabels implements metav1.Object.
func (o *Object) SetLabels(labels map[string]string) { change(o, (*content).SetLabels, labels) }

// SetAnnotations implements metav1.Object.
func (o *Object) SetAnnotations(annotations map[string]string) {
	change(o, (*content).SetAnnotations, annotations)
}

// SetFinalizers implements metav1.Object.
func (o *Object) SetFinalizers(finalizers []string) { change(o, (*content).SetFinalizers, finalizers) }

// SetOwnerReferences implements metav1.Object.
func (o *Object) SetOwnerReferences(references []metav1.OwnerReference) {
	change(o, (*content).SetOwnerReferences, references)
}

// SetManagedFields implements metav1.Object.
func (o *Object) SetManagedFields(fields []metav1.ManagedFieldsEntry) {
	change(o, (*content).SetManagedFields, fields)
}

// GroupVersionKind implements schema.ObjectKind.
func (o *Object) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(o.Value().Field("apiVersion").Text(), o.Value().Field("kind").Text())
}

// SetGroupVersionKind implements schema.ObjectKind.
func (o *Object) SetGroupVersionKind(gvk schema.GroupVersionKind) {
	change(o, (*content).SetGroupVersionKind, gvk)
}

type content = unstructured.Unstructured

// change replaces the object. It is meant for rare changes, because the result does not share anything with
// other objects.
func change[T any](o *Object, set func(*content, T), value T) {
	u := o.Unstructured()
	set(u, value)
	*o = *NewPacker().Pack(u)
}
