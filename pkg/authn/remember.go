package authn

import (
	"crypto/x509"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
)

const (
	// rememberFor and rememberAtMost limit the time and the number of cached verifications.
	rememberFor    = time.Minute
	rememberAtMost = 4096
)

// remembering caches successful authentications by client certificate, because a verification costs an
// elliptic curve operation and a digest, and all requests of a connection have the same certificate.
type remembering struct {
	verify  authenticator.Request
	options x509request.VerifyOptionFunc

	mu    sync.RWMutex
	valid map[verified]answer
}

// answer is an immutable cached response, valid until the given time.
type answer struct {
	*authenticator.Response

	until time.Time
}

// verified is the key of a verification. The TLS stack uses the same certificate object for all requests of a
// connection.
type verified struct {
	leaf  *x509.Certificate
	roots *x509.CertPool
}

func newRemembering(verify authenticator.Request, options x509request.VerifyOptionFunc) *remembering {
	return &remembering{verify: verify, options: options, valid: map[verified]answer{}}
}

func (c *remembering) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	options, ok := c.options()
	if !ok {
		return nil, false, nil
	}
	key, now := verified{leaf: r.TLS.PeerCertificates[0], roots: options.Roots}, time.Now()
	c.mu.RLock()
	known := c.valid[key]
	c.mu.RUnlock()
	if now.Before(known.until) {
		return known.Response, true, nil
	}
	response, ok, err := c.verify.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, false, err
	}
	until := now.Add(rememberFor)
	for _, cert := range r.TLS.PeerCertificates {
		if cert.NotAfter.Before(until) {
			until = cert.NotAfter
		}
	}
	c.mu.Lock()
	if len(c.valid) >= rememberAtMost {
		clear(c.valid)
	}
	c.valid[key] = answer{response, until}
	c.mu.Unlock()
	return response, true, nil
}

// anybody is used if only the success of a verification matters.
var anybody = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{}, true, nil
})
