package apis

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FieldPath returns the names in a path to a field of an object, such as
// .spec.name.first, of which the first dot may be missing. It returns nil for anything
// else: what has dots in its name, is in a list, or is selected, cannot be said.
func FieldPath(path string) []string {
	names := strings.Split(strings.TrimPrefix(path, "."), ".")
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, "[]{}()*?@'\"\\, \t\n") {
			return nil
		}
	}
	return names
}

// validateFieldPath wants a path to a field, such as .spec.name.first.
func validateFieldPath(value string, path *field.Path) field.ErrorList {
	if FieldPath(value) == nil {
		return field.ErrorList{field.Invalid(path, value, "must be the JSONPath of a field from the root of the object, of names and dots only, such as .spec.name.first")}
	}
	return nil
}

// validateDestination wants a path to a field that a rule may set.
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
