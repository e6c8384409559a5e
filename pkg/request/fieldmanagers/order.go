package fieldmanagers

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KeepOrder gives the field managers of an updated object their former order if they differ by nothing but timestamps. The
// generic registry ignores an update that changes nothing else, but it compares field managers by position, and they are
// sorted by timestamps. Two managers that write in turn, each without a change, would therefore move each other.
func KeepOrder(updated, before metav1.Object) {
	managers, former := updated.GetManagedFields(), before.GetManagedFields()
	if len(managers) != len(former) {
		return
	}
	withoutFields := func(entry metav1.ManagedFieldsEntry) metav1.ManagedFieldsEntry {
		entry.Time, entry.FieldsV1 = nil, nil
		return entry
	}
	byManager := make(map[metav1.ManagedFieldsEntry]metav1.ManagedFieldsEntry, len(managers))
	for _, entry := range managers {
		byManager[withoutFields(entry)] = entry
	}
	ordered := make([]metav1.ManagedFieldsEntry, 0, len(former))
	for _, was := range former {
		entry, ok := byManager[withoutFields(was)]
		if !ok || !equality.Semantic.DeepEqual(entry.FieldsV1, was.FieldsV1) {
			return
		}
		ordered = append(ordered, entry)
	}
	updated.SetManagedFields(ordered)
}
