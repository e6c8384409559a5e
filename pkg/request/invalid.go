package request

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
)

const (
	// MaxErrors is the maximum number of reported validation errors.
	//
	//reference:limit request | response: validation errors | others are omitted
	MaxErrors = 100
	// maxErrorBytes limits their total size. An error may contain an entire list, for each item of the list.
	//
	//reference:limit request | response: size of the validation errors | others are omitted
	maxErrorBytes = 256 << 10
	//reference:none
	maxErrorText = 1 << 10
)

// NewInvalid returns the error for an invalid object, within the limits of LimitErrors.
func NewInvalid(kind schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	return apierrors.NewInvalid(kind, name, LimitErrors(errs))
}

// LimitErrors returns the first validation errors, up to a limit, because an object of 3 MB could have errors of
// several GB. The last one mentions that there are more.
func LimitErrors(errs field.ErrorList) field.ErrorList {
	size := 0
	for i, err := range errs {
		size += len(err.Field) + len(err.ErrorBody())
		if i == MaxErrors || i > 0 && size > maxErrorBytes {
			return withOmitted(errs, i)
		}
		if size > maxErrorBytes {
			first := *err
			first.Field, first.Detail = shortened(err.Field), shortened(err.Detail)
			if first.BadValue != nil {
				first.BadValue = shortened(fmt.Sprint(err.BadValue))
			}
			return withOmitted(append(field.ErrorList{&first}, errs[1:]...), 1)
		}
	}
	return errs
}

func withOmitted(errs field.ErrorList, n int) field.ErrorList {
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

// StatusError returns an API error with exactly this message, which the constructors of package errors extend.
func StatusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// NotFound returns an error with code 404 and exactly this message.
func NotFound(message string) *apierrors.StatusError {
	return StatusError(http.StatusNotFound, metav1.StatusReasonNotFound, message)
}

// Unavailable returns the response to a request that is likely to succeed if it is retried: 503
// with a Retry-After of a second.
func Unavailable(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message) //nolint:forbidigo // with a delay
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// BodyLevel is the verbosity from which client-go logs bodies.
const BodyLevel = 8

// WithoutBodies returns a context that logs calls without bodies, because these may contain tokens and Secrets.
func WithoutBodies(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	return klog.NewContext(ctx, logger.WithSink(withoutBodies{logger.GetSink()}))
}

type withoutBodies struct{ logr.LogSink }

func (s withoutBodies) Enabled(level int) bool { return level < BodyLevel && s.LogSink.Enabled(level) }

func (s withoutBodies) WithValues(pairs ...any) logr.LogSink {
	return withoutBodies{s.LogSink.WithValues(pairs...)}
}

func (s withoutBodies) WithName(name string) logr.LogSink {
	return withoutBodies{s.LogSink.WithName(name)}
}
