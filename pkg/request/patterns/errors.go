package patterns

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// origin is that of errors about patterns and expressions.
const origin = "patterns"

// Invalid returns the error for a field with a pattern or an expression that is too large.
func Invalid(path *field.Path, value string, err error) *field.Error {
	return field.Invalid(path, value, err.Error()).WithOrigin(origin)
}

// WithoutFormer returns errors without those about patterns and expressions that were in the object before
// it was changed, in whichever field: objects from before the limits can still be changed. before
// returns the errors of the object as it was, and is called only if it is needed.
func WithoutFormer(errs field.ErrorList, before func() field.ErrorList) field.ErrorList {
	isLarge := func(err *field.Error) bool { return err.Origin == origin }
	if !slices.ContainsFunc(errs, isLarge) {
		return errs
	}
	former := sets.New[any]()
	for _, err := range before() {
		if isLarge(err) {
			former.Insert(err.BadValue)
		}
	}
	return slices.DeleteFunc(errs, func(err *field.Error) bool { return isLarge(err) && former.Has(err.BadValue) })
}
