package request

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// MaxErrors is the number of validation errors that are reported at most.
	MaxErrors = 100
	// maxErrorBytes is the size of their texts. An error may contain a whole list, and each item of the list may have one.
	maxErrorBytes = 256 << 10
	// maxErrorText is what is left of a text that alone is larger.
	maxErrorText = 1 << 10
)

// NewInvalid returns the error for an object with validation errors, within the limits of LimitErrors.
func NewInvalid(kind schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	return apierrors.NewInvalid(kind, name, LimitErrors(errs))
}

// LimitErrors returns the first of many or large validation errors. The last of them mentions that there are more. Without
// limits an object of 3 MB can have errors of several GB.
func LimitErrors(errs field.ErrorList) field.ErrorList {
	size := 0
	for i, err := range errs {
		if i == MaxErrors {
			return withMore(errs, i)
		}
		size += len(err.Field) + len(err.ErrorBody())
		if size <= maxErrorBytes {
			continue
		}
		if i > 0 {
			return withMore(errs, i)
		}
		first := *err
		first.Field, first.Detail = shortened(err.Field), shortened(err.Detail)
		if first.BadValue != nil {
			first.BadValue = shortened(fmt.Sprint(err.BadValue))
		}
		return withMore(append(field.ErrorList{&first}, errs[1:]...), 1)
	}
	return errs
}

// withMore returns the first n errors.
func withMore(errs field.ErrorList, n int) field.ErrorList {
	if n == len(errs) {
		return errs
	}
	last := *errs[n-1]
	if last.Detail != "" {
		last.Detail += " "
	}
	last.Detail += "(there are more errors)"
	return append(errs[:n-1:n-1], &last)
}

func shortened(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return text[:maxErrorText] + "..."
}
