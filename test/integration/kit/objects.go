package kit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Field returns a field of an object, or nil.
func Field(u *unstructured.Unstructured, path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return value
}

// Condition returns the status and reason of a condition, e.g. "True <nil>".
func Condition(u *unstructured.Unstructured, kind string) string {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return strings.TrimSpace(fmt.Sprint(c["status"], " ", c["reason"]))
		}
	}
	return ""
}

// Widget returns a Widget with one field in its spec.
func Widget(name, field string, value int) string {
	return fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":%q},"spec":{%q:%d}}`, name, field, value)
}

// Names returns the names of objects.
func Names(all []unstructured.Unstructured) []string {
	names := []string{}
	for i := range all {
		names = append(names, all[i].GetName())
	}
	return names
}

// Items returns the objects in a list.
func Items(list *unstructured.Unstructured) []unstructured.Unstructured {
	var all []unstructured.Unstructured
	items, _ := Field(list, "items").([]any)
	for _, item := range items {
		all = append(all, unstructured.Unstructured{Object: item.(map[string]any)})
	}
	return all
}

// ItemNames returns the sorted names of the objects in a list.
func ItemNames(list *unstructured.Unstructured) []string {
	return slices.Sorted(slices.Values(Names(Items(list))))
}

// NamespaceNames returns the logical clusters and names of Namespaces, as <cluster>|<name>.
func NamespaceNames(namespaces []corev1.Namespace) []string {
	var names []string
	for i := range namespaces {
		names = append(names, string(logicalcluster.From(&namespaces[i]))+"|"+namespaces[i].Name)
	}
	return names
}
