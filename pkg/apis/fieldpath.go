package apis

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FieldPath returns the names in a path such as .spec.name.first, whose first dot is optional. It returns nil for
// names that contain dots, for list items and for filters, which are not supported.
func FieldPath(path string) []string {
	names := strings.Split(strings.TrimPrefix(path, "."), ".")
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, "[]{}()*?@'\"\\, \t\n") {
			return nil
		}
	}
	return names
}

func validateFieldPath(value string, path *field.Path) field.ErrorList {
	if FieldPath(value) == nil {
		return field.ErrorList{field.Invalid(path, value, "must be the JSONPath of a field from the root of the object, of names and dots only, such as .spec.name.first")}
	}
	return nil
}

func validateDestination(value string, path *field.Path) field.ErrorList {
	if errs := validateFieldPath(value, path); len(errs) > 0 {
		return errs
	}
	switch FieldPath(value)[0] {
	case "apiVersion", "kind", "metadata":
		return field.ErrorList{field.Invalid(path, value, "must not be in apiVersion, kind or metadata, which are the same in all versions")}
	default:
		return nil
	}
}
