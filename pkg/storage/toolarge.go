package storage

import (
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tooLargeError is 413 for what upstream answers with 500: an object that is larger than
// etcd takes. It says what etcd says, since upstream's handlers write the object once more then,
// without its managed fields.
type tooLargeError struct{ cause error }

// tellTooLarge returns the error of a write, as a tooLargeError if it is one.
func tellTooLarge(err error) error {
	// A client that is not in etcd's process sends no more than it would take for sure.
	unsent := status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "trying to send message larger than max")
	if unsent || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		return tooLargeError{err}
	}
	return err
}

// Error implements error.
func (tooLargeError) Error() string { return rpctypes.ErrRequestTooLarge.Error() }

// Code is that of etcd's error.
func (tooLargeError) Code() codes.Code { return codes.InvalidArgument }

// Unwrap returns etcd's error.
func (e tooLargeError) Unwrap() error { return e.cause }

// Status implements apierrors.APIStatus.
func (e tooLargeError) Status() metav1.Status {
	return apierrors.NewRequestEntityTooLargeError("the object takes more than etcd stores, which is 1.5 MiB by default: " + e.cause.Error()).Status()
}
