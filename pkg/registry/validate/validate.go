// Package validate holds the checks on metadata and the helpers that the
// validations of several built-in resources share.
//
// They answer what kube-apiserver answers, word for word, because clients and
// their tests compare.
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

// standardFinalizers may be used without a domain.
var standardFinalizers = map[string]bool{
	string(corev1.FinalizerKubernetes): true,
	metav1.FinalizerOrphanDependents:   true,
	metav1.FinalizerDeleteDependents:   true,
}

// ObjectMeta checks the metadata of a new object of the core group; name is
// the rule for its name.
func ObjectMeta(meta *metav1.ObjectMeta, namespaced bool, name apivalidation.ValidateNameFunc) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(meta, namespaced, name, metadata)
	return append(errs, finalizersOf(meta)...)
}

// ObjectMetaUpdate checks the metadata of an updated object of the core group.
func ObjectMetaUpdate(meta, old *metav1.ObjectMeta) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(meta, old, metadata)
	return append(errs, finalizersOf(meta)...)
}

// finalizersOf checks that finalizers without a domain are standard ones.
func finalizersOf(meta *metav1.ObjectMeta) field.ErrorList {
	var errs field.ErrorList
	for i, name := range meta.Finalizers {
		errs = append(errs, standardFinalizer(name, metadata.Child("finalizers").Index(i))...)
	}
	return errs
}

// Finalizer checks one finalizer name.
func Finalizer(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return append(errs, standardFinalizer(name, path)...)
}

func standardFinalizer(name string, path *field.Path) field.ErrorList {
	if strings.Contains(name, "/") || standardFinalizers[name] {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

// Immutable checks that a field has not changed.
func Immutable(value, old any, path *field.Path) field.ErrorList {
	return apivalidation.ValidateImmutableField(value, old, path)
}

// DataKey checks a key of a config map's or secret's data.
func DataKey(key string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(path.Key(key), key, msg))
	}
	return errs
}

// Frozen checks an update of an object that may have been frozen with its
// `immutable` field: that it stays frozen and that none of its data fields
// changed; changed names those that did.
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
