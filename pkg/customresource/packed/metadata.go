package packed

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var _ metav1.Object = (*content)(nil)

const metadataField = "metadata"

func (o *content) field(name string) Value { return o.Field(metadataField).Field(name) }

// only returns an object with only one field of the metadata, if it exists.
func (o *content) only(name string) *unstructured.Unstructured {
	field := o.field(name)
	if field.IsZero() {
		return &unstructured.Unstructured{}
	}
	return &unstructured.Unstructured{Object: map[string]any{metadataField: map[string]any{name: field.Any()}}}
}

func (o *content) GetNamespace() string { return o.field("namespace").Text() }

func (o *content) GetName() string { return o.field("name").Text() }

func (o *content) GetGenerateName() string { return o.field("generateName").Text() }

func (o *content) GetUID() types.UID { return types.UID(o.field("uid").Text()) }

func (o *content) GetResourceVersion() string { return o.resourceVersion }

func (o *content) GetGeneration() int64 { return o.only("generation").GetGeneration() }

func (o *content) GetSelfLink() string { return o.field("selfLink").Text() }

func (o *content) GetCreationTimestamp() metav1.Time {
	return o.only("creationTimestamp").GetCreationTimestamp()
}

func (o *content) GetDeletionTimestamp() *metav1.Time {
	return o.only("deletionTimestamp").GetDeletionTimestamp()
}

func (o *content) GetDeletionGracePeriodSeconds() *int64 {
	return o.only("deletionGracePeriodSeconds").GetDeletionGracePeriodSeconds()
}

func (o *content) GetLabels() map[string]string { return o.field("labels").Texts() }

func (o *content) GetAnnotations() map[string]string { return o.field("annotations").Texts() }

// Annotation returns one annotation without creating a map of all.
func (o *content) Annotation(name string) string { return o.field("annotations").Field(name).Text() }

func (o *content) GetFinalizers() []string { return o.only("finalizers").GetFinalizers() }

func (o *content) GetOwnerReferences() []metav1.OwnerReference {
	return o.only("ownerReferences").GetOwnerReferences()
}

func (o *content) GetManagedFields() []metav1.ManagedFieldsEntry {
	return o.only("managedFields").GetManagedFields()
}

func (o *content) SetNamespace(namespace string) { change(o, (*unpacked).SetNamespace, namespace) }

func (o *content) SetName(name string) { change(o, (*unpacked).SetName, name) }

func (o *content) SetGenerateName(name string) { change(o, (*unpacked).SetGenerateName, name) }

func (o *content) SetUID(uid types.UID) { change(o, (*unpacked).SetUID, uid) }

func (o *content) SetResourceVersion(version string) { o.resourceVersion = version }

func (o *content) SetGeneration(generation int64) { change(o, (*unpacked).SetGeneration, generation) }

// SetSelfLink implements metav1.Object. Storage clears the link of each object that it reads, which seldom has one.
func (o *content) SetSelfLink(link string) {
	if link != "" || !o.field("selfLink").IsZero() {
		change(o, (*unpacked).SetSelfLink, link)
	}
}

func (o *content) SetCreationTimestamp(timestamp metav1.Time) {
	change(o, (*unpacked).SetCreationTimestamp, timestamp)
}

func (o *content) SetDeletionTimestamp(timestamp *metav1.Time) {
	change(o, (*unpacked).SetDeletionTimestamp, timestamp)
}

func (o *content) SetDeletionGracePeriodSeconds(seconds *int64) {
	change(o, (*unpacked).SetDeletionGracePeriodSeconds, seconds)
}

func (o *content) SetLabels(labels map[string]string) { change(o, (*unpacked).SetLabels, labels) }

func (o *content) SetAnnotations(annotations map[string]string) {
	change(o, (*unpacked).SetAnnotations, annotations)
}

func (o *content) SetFinalizers(finalizers []string) {
	change(o, (*unpacked).SetFinalizers, finalizers)
}

func (o *content) SetOwnerReferences(references []metav1.OwnerReference) {
	change(o, (*unpacked).SetOwnerReferences, references)
}

func (o *content) SetManagedFields(fields []metav1.ManagedFieldsEntry) {
	change(o, (*unpacked).SetManagedFields, fields)
}

func (o *content) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(o.Field("apiVersion").Text(), o.Field("kind").Text())
}

func (o *content) SetGroupVersionKind(gvk schema.GroupVersionKind) {
	change(o, (*unpacked).SetGroupVersionKind, gvk)
}

type unpacked = unstructured.Unstructured

// change replaces the object. It is meant for rare changes, because the result does not share anything with
// other objects.
func change[T any](o *content, set func(*unpacked, T), value T) {
	u := o.Unstructured()
	set(u, value)
	*o = NewPacker().Pack(u).content
}
