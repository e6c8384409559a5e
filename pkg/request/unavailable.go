package request

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Unavailable returns the answer to a request that cannot be served now and can be soon, as message explains:
// 503, with a Retry-After of a second, after which client-go sends the request again.
func Unavailable(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message) //nolint:forbidigo // with a delay
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}
