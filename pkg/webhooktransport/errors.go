package webhooktransport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
)

var (
	// errRefused is returned for connections to addresses that are not allowed.
	errRefused = errors.New("the address is not allowed by " + flagAllowedCIDRs)
	errTimeout = errors.New("the connection to the webhook timed out")
	errHidden  = errors.New("calling the webhook failed; see the server's log at -v=2")
)

// publicError returns the information about an error that tenants may see. Errors of connections contain addresses,
// including local ones and those of resolvers; other errors quote responses. Therefore only errors that are known to
// be harmless are returned.
func publicError(err error, host string) error {
	var (
		ofName  *net.DNSError
		ofNet   net.Error
		errno   syscall.Errno
		alert   tls.AlertError
		record  tls.RecordHeaderError
		invalid *tls.CertificateVerificationError
	)
	switch {
	case errors.Is(err, errRefused), errors.As(err, &ofName):
		return unreachable(host)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unwrapped(err, context.Canceled, context.DeadlineExceeded)
	case errors.As(err, &invalid):
		return invalid
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the webhook does not use TLS")
	case errors.As(err, &alert):
		return alert
	case errors.As(err, &errno) && !errno.Timeout():
		return fmt.Errorf("the connection to the webhook failed: %w", errno)
	case errors.As(err, &ofNet) && ofNet.Timeout():
		return errTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return unwrapped(err, io.EOF, io.ErrUnexpectedEOF)
	case errors.As(err, new(responseError)):
		return err
	default:
		return errHidden
	}
}

// unwrapped returns the one of errs that err wraps.
func unwrapped(err error, errs ...error) error {
	for _, e := range errs {
		if errors.Is(err, e) {
			return e
		}
	}
	return err
}

// unreachable returns the error for hosts that cannot be called. It does not reveal whether a name exists, because
// names of the administrator's network are confidential.
func unreachable(host string) error {
	const rest = "which the server's " + flagAllowedCIDRs + " does not allow: use a public address, or ask the operator to allow this one"
	if _, err := netip.ParseAddr(host); err == nil {
		return fmt.Errorf("the webhook's address %s is a loopback, link-local, private or reserved address, %s", host, rest)
	}
	return fmt.Errorf("the webhook's host %q cannot be resolved, or has only loopback, link-local, private or reserved addresses, %s", host, rest)
}
