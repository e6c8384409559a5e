package request

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StatusError returns an API error with exactly this message, which the constructors of package errors extend.
func StatusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// Unavailable returns a 503 error for a request that can be served soon. client-go retries after a second, according
// to its Retry-After.
func Unavailable(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message) //nolint:forbidigo // with a delay
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}
