package webhooktransport

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// MaxResponseBytes bounds a response, after decompression. Requests are limited to 3 MiB, and objects in etcd to half
	// of that: neither converted objects nor patches in base64 are larger.
	//
	//reference:limit request | webhook: response, decompressed | the call fails
	MaxResponseBytes = 4 << 20
	// headerBytes bounds the headers of a response, which are not used.
	//
	//reference:limit request | webhook: response header | the call fails
	headerBytes = 64 << 10
)

// responseError describes an invalid response without quoting it.
type responseError string

func (e responseError) Error() string { return string(e) }

// Operator bounds the responses of the service of c, which the administrator has configured in a file: the service
// must not exhaust the server's memory, or redirect its credentials.
func Operator(c *rest.Config) {
	if c.Proxy == nil {
		c.Proxy = http.ProxyFromEnvironment // the default, but client-go does not share transports with a Proxy function
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		boundHeaders(next)
		return operator{next}
	})
}

// boundHeaders bounds the headers of responses for a transport of client-go. The config must have a Proxy function,
// because client-go shares transports otherwise.
func boundHeaders(transport http.RoundTripper) {
	switch t := transport.(type) {
	case *http.Transport:
		t.MaxResponseHeaderBytes = headerBytes
	case utilnet.RoundTripperWrapper: // transports that reload certificates and CAs
		boundHeaders(t.WrappedRoundTripper())
	}
}

type operator struct{ next http.RoundTripper }

func (o operator) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if err := final(response); err != nil {
		return nil, err
	}
	data, err := readLimited(response.Body, "webhook", MaxResponseBytes)
	if err != nil {
		return nil, err
	}
	replace(response, data)
	return response, nil
}

// final returns an error for responses that are redirects or protocol switches.
func final(response *http.Response) error {
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return responseError(fmt.Sprintf("the webhook returned a redirect (%d), and redirects are not followed: use the URL that it redirects to", code))
	case code < 200:
		return responseError(fmt.Sprintf("the webhook returned status %d instead of a result", code))
	default:
		return nil
	}
}

// readLimited reads the response of a server, which it names in the error for responses above the limit.
func readLimited(body io.Reader, server string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, responseError(fmt.Sprintf("the %s returned more than %d bytes", server, limit))
	}
	return data, nil
}

func replace(response *http.Response, data []byte) {
	response.Body = io.NopCloser(bytes.NewReader(data))
	response.ContentLength = int64(len(data))
}

var (
	// errRefused is returned for connections to addresses that are not allowed.
	errRefused = errors.New("the address is not allowed by " + flagAllowedCIDRs)
	errTimeout = errors.New("the connection to the webhook timed out")
	errHidden  = errors.New("calling the webhook failed; see the server's log at -v=2")
)

// harmless returns the information about an error that tenants may see. Errors of connections contain addresses,
// including local ones and those of resolvers; other errors quote responses. If the host cannot be called, it is
// errRefused, whether or not its name exists, because names of the administrator's network are confidential.
func harmless(err error) error {
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
		return errRefused
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
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
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	case errors.As(err, new(responseError)):
		return err
	default:
		return errHidden
	}
}

// publicError returns the information about an error of a webhook that tenants may see.
func publicError(err error, host string) error {
	err = harmless(err)
	if !errors.Is(err, errRefused) {
		return err
	}
	const rest = "which the server's " + flagAllowedCIDRs + " does not allow: use a public address, or ask the operator to allow this one"
	if _, err := netip.ParseAddr(host); err == nil {
		return fmt.Errorf("the webhook's address %s is a loopback, link-local, private or reserved address, %s", host, rest)
	}
	return fmt.Errorf("the webhook's host %q cannot be resolved, or has only loopback, link-local, private or reserved addresses, %s", host, rest)
}

// DocumentBytes bounds a document, after decompression.
//
//reference:limit issuer | size of a response, decompressed | 401
const DocumentBytes = 1 << 20

// Documents reads URLs that tenants have configured, e.g. the keys of their issuers, with GET and without credentials.
// It is safe for concurrent use.
type Documents struct {
	flag   string
	dialer *net.Dialer
}

// NewDocuments returns a Documents for public addresses and allowed ranges. Errors contain the name of the flag.
func NewDocuments(flag string, allowed []string) (*Documents, error) {
	dialer, err := NewDialer(flag, allowed)
	return &Documents{flag: flag, dialer: dialer}, err
}

// Get returns the document at a URL. The server's certificate must be signed by roots or, if nil, the CAs of the
// system. The error contains only information that tenants may see.
func (d *Documents) Get(ctx context.Context, url string, roots *x509.CertPool) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil || r.URL.Scheme != "https" || r.URL.User != nil {
		return nil, errors.New("must be a URL that starts with https://, without credentials")
	}
	r.Header.Set("Accept", "application/json")
	transport := &http.Transport{
		DialContext:         d.dialer.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectTimeout, MaxResponseHeaderBytes: headerBytes,
		DisableKeepAlives: true, // documents are read every few minutes
	}
	data, err := document(transport, r)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read a document at a tenant's URL", "url", r.URL.Redacted(), "err", err)
		return nil, d.public(err, r.URL.Hostname())
	}
	return data, nil
}

// document does not follow redirects, because a transport does not.
func document(transport http.RoundTripper, r *http.Request) ([]byte, error) {
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return nil, responseError(fmt.Sprintf("the server returned a redirect (%d), and redirects are not followed", code))
	case code != http.StatusOK:
		return nil, responseError(fmt.Sprintf("the server returned status %d", code))
	}
	return readLimited(response.Body, "server", DocumentBytes)
}

// public returns the information about an error that tenants may see; see harmless.
func (d *Documents) public(err error, host string) error {
	err = harmless(err)
	switch {
	case errors.Is(err, errRefused):
		return fmt.Errorf("the host %q cannot be resolved, or has only loopback, link-local, private or reserved addresses, which the server's %s does not allow", host, d.flag)
	case errors.As(err, new(responseError)), errors.As(err, new(*tls.CertificateVerificationError)):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errTimeout):
		return errors.New("the server did not respond in time")
	default:
		return errors.New("the document could not be read; see the server's log at -v=2")
	}
}
