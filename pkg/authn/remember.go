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
	// rememberFor bounds for how long a certificate is not verified again.
	rememberFor = time.Minute
	// rememberAtMost bounds how many certificates are remembered.
	rememberAtMost = 4096
)

// remembering authenticates by the client certificate of a request as verify does.
// A certificate that was valid a moment ago, for the same CAs, is not verified
// again, nor is its owner read from it: that costs an elliptic curve operation and
// a digest, and connections bring the same certificate with every request.
// Failures are not remembered.
type remembering struct {
	verify  authenticator.Request
	options x509request.VerifyOptionFunc

	mu    sync.RWMutex
	valid map[verified]answer
}

// answer is what verify said, which holds until then. Nobody may change it.
type answer struct {
	*authenticator.Response

	until time.Time
}

// verified identifies a verification. The TLS stack gives the requests of a
// connection the same certificate object, which the key keeps alive.
type verified struct {
	leaf  *x509.Certificate
	roots *x509.CertPool
}

func newRemembering(verify authenticator.Request, options x509request.VerifyOptionFunc) *remembering {
	return &remembering{verify: verify, options: options, valid: map[verified]answer{}}
}

// AuthenticateRequest implements authenticator.Request.
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

// anybody is who passes a verification of which only the success matters.
var anybody = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{}, true, nil
})
