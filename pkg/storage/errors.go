package storage

import (
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
)

// tooLargeError is status 413 for an object that exceeds etcd's limit, which upstream maps to 500. Its text
// is that of etcd's error, because upstream's handlers then retry without managed fields.
type tooLargeError struct{ cause error }

// convertTooLarge converts the error of a write to a tooLargeError if the object is too large.
func convertTooLarge(err error) error {
	// A remote client rejects requests that are larger than etcd's limit itself.
	unsent := status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "trying to send message larger than max")
	if unsent || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		return tooLargeError{err}
	}
	return err
}

func (tooLargeError) Error() string    { return rpctypes.ErrRequestTooLarge.Error() }
func (tooLargeError) Code() codes.Code { return codes.InvalidArgument } // as etcd's error
func (e tooLargeError) Unwrap() error  { return e.cause }

func (e tooLargeError) Status() metav1.Status {
	return apierrors.NewRequestEntityTooLargeError("the object exceeds the size limit of etcd, which is 1.5 MiB by default: " + e.cause.Error()).Status()
}

// badRequestError is status 400 for an error that upstream maps to 500.
type badRequestError struct {
	*apierrors.StatusError

	cause error
}

func (e badRequestError) Unwrap() error { return e.cause }

func invalidVersion(err error) error {
	return badRequestError{apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err)), err}
}

// retryAfterSeconds is the suggested delay after a wait for a future version has timed out.
const retryAfterSeconds = 1

// retrySoon adds a retry delay, which etcd3 omits, to the error for a version in the future.
func retrySoon(err error) error {
	var status *apierrors.StatusError
	if !storage.IsTooLargeResourceVersion(err) || !errors.As(err, &status) || status.ErrStatus.Details.RetryAfterSeconds != 0 {
		return err
	}
	retry, details := *status, *status.ErrStatus.Details
	details.RetryAfterSeconds = retryAfterSeconds
	retry.ErrStatus.Details = &details
	return &retry
}
