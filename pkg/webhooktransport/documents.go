package webhooktransport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"k8s.io/klog/v2"
)

// DocumentBytes bounds a document, after decompression.
const DocumentBytes = 1 << 20

// Documents reads what is at URLs that tenants chose, such as the keys of their issuers: by
// GET, without credentials. It is safe for concurrent use.
type Documents struct {
	flag   string
	dialer *net.Dialer
}

// NewDocuments returns what reads at public addresses, and those in ranges that a flag allows,
// which errors name.
func NewDocuments(flag string, allowed []string) (*Documents, error) {
	dialer, err := NewDialer(flag, allowed)
	return &Documents{flag: flag, dialer: dialer}, err
}

// Get returns the document at a URL, of a server whose certificate is of the CAs roots, or of
// those of the system where these are nil. The error says nothing but what the tenant may know.
func (d *Documents) Get(ctx context.Context, url string, roots *x509.CertPool) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil || r.URL.Scheme != "https" || r.URL.User != nil {
		return nil, errors.New("it is not a URL that starts with https://, without credentials")
	}
	r.Header.Set("Accept", "application/json")
	transport := &http.Transport{
		DialContext:         d.dialer.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectTimeout, MaxResponseHeaderBytes: headerBytes,
		DisableKeepAlives: true, // it is asked for again in minutes
	}
	data, err := document(transport, r)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("A document at a tenant's URL could not be read", "url", r.URL.Redacted(), "err", err)
		return nil, d.tell(err, r.URL.Hostname())
	}
	return data, nil
}

// document asks once: a transport follows no redirects.
func document(transport http.RoundTripper, r *http.Request) ([]byte, error) {
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return nil, answerError(fmt.Sprintf("the server answered with a redirect (%d), and redirects are not followed", code))
	case code != http.StatusOK:
		return nil, answerError(fmt.Sprintf("the server answered with status %d", code))
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, DocumentBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > DocumentBytes {
		return nil, answerError(fmt.Sprintf("the server answered with more than %d bytes", DocumentBytes))
	}
	return data, nil
}

// tell is what the tenant may know of an error; see tell of webhooks.
func (d *Documents) tell(err error, host string) error {
	var (
		ofName  *net.DNSError
		ofNet   net.Error
		invalid *tls.CertificateVerificationError
	)
	switch {
	case errors.Is(err, errRefused), errors.As(err, &ofName):
		return fmt.Errorf("the host %q is not known, or has only loopback, link-local, private or reserved addresses, which the server's %s does not allow", host, d.flag)
	case errors.As(err, new(answerError)):
		return err
	case errors.As(err, &invalid):
		return invalid
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ofNet) && ofNet.Timeout():
		return errors.New("the server did not answer in time")
	default:
		return errors.New("the server could not be asked; the log says why, from -v=2 on")
	}
}
