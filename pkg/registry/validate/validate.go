// Package validate contains checks of metadata and helpers for the validation of several built-in resources. Their
// messages are those of kube-apiserver, because clients compare them.
package validate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var metadata = field.NewPath("metadata")

// standardFinalizers are valid without a domain.
var standardFinalizers = map[string]bool{
	string(corev1.FinalizerKubernetes): true,
	metav1.FinalizerOrphanDependents:   true,
	metav1.FinalizerDeleteDependents:   true,
}

// ObjectMeta validates the metadata of a new object of the core group. name validates its name.
func ObjectMeta(meta metav1.Object, namespaced bool, name apivalidation.ValidateNameFunc) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaAccessor(meta, namespaced, name, metadata)
	return append(errs, finalizersOf(meta)...)
}

// ObjectMetaUpdate validates the metadata of an updated object of the core group.
func ObjectMetaUpdate(meta, old metav1.Object) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(meta, old, metadata)
	return append(errs, finalizersOf(meta)...)
}

func finalizersOf(meta metav1.Object) field.ErrorList {
	var errs field.ErrorList
	for i, name := range meta.GetFinalizers() {
		errs = append(errs, standardFinalizer(name, metadata.Child("finalizers").Index(i))...)
	}
	return errs
}

// Finalizer validates the name of a finalizer.
func Finalizer(name string, path *field.Path) field.ErrorList {
	return append(Messages(path, name, validation.IsQualifiedName(name)), standardFinalizer(name, path)...)
}

func standardFinalizer(name string, path *field.Path) field.ErrorList {
	if strings.Contains(name, "/") || standardFinalizers[name] {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

// Frozen validates an update of an object with the field `immutable`. If it was set, it must remain set, and no data
// field may change. changed contains the names of changed fields.
func Frozen(now, old *bool, changed ...string) field.ErrorList {
	if old == nil || !*old {
		return nil
	}
	const detail = "field is immutable when `immutable` is set"
	var errs field.ErrorList
	if now == nil || !*now {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), detail))
	}
	for _, name := range changed {
		errs = append(errs, field.Forbidden(field.NewPath(name), detail))
	}
	return errs
}

// Messages returns an error for each message about a value.
func Messages(path *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range messages {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

// Seen contains the values of a list that must be unique.
type Seen[T comparable] map[T]bool

// Add returns an error if the list has the value already.
func (s Seen[T]) Add(value T, path *field.Path) field.ErrorList {
	if s[value] {
		return field.ErrorList{field.Duplicate(path, value)}
	}
	s[value] = true
	return nil
}
