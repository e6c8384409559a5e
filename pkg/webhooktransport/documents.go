package webhooktransport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"

	"k8s.io/klog/v2"
)

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

// public returns the information about an error that tenants may see; see publicError.
func (d *Documents) public(err error, host string) error {
	var (
		ofName  *net.DNSError
		ofNet   net.Error
		invalid *tls.CertificateVerificationError
	)
	switch {
	case errors.Is(err, errRefused), errors.As(err, &ofName):
		return fmt.Errorf("the host %q cannot be resolved, or has only loopback, link-local, private or reserved addresses, which the server's %s does not allow", host, d.flag)
	case errors.As(err, new(responseError)):
		return err
	case errors.As(err, &invalid):
		return invalid
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ofNet) && ofNet.Timeout():
		return errors.New("the server did not respond in time")
	default:
		return errors.New("the document could not be read; see the server's log at -v=2")
	}
}
