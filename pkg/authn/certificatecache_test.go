package authn

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestCertificateCache(t *testing.T) {
	t.Parallel()
	roots, verifications := x509.NewCertPool(), 0
	var refuse error
	verify := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		verifications++
		return &authenticator.Response{User: &user.DefaultInfo{Name: r.TLS.PeerCertificates[0].Subject.CommonName}}, refuse == nil, refuse
	})
	c := newCertificateCache(verify, func() (x509.VerifyOptions, bool) { return x509.VerifyOptions{Roots: roots}, roots != nil })
	cert := func(name string, lifetime time.Duration) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(lifetime)}
	}
	authenticate := func(certs ...*x509.Certificate) (string, error) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.TLS = &tls.ConnectionState{PeerCertificates: certs}
		res, ok, err := c.AuthenticateRequest(r)
		if !ok {
			return "", err
		}
		return res.User.GetName(), err
	}
	steps := []struct {
		name, user string
		certs      []*x509.Certificate
		total      int
	}{
		{name: "first", certs: []*x509.Certificate{cert("ann", time.Hour)}, user: "ann", total: 1},
		{name: "another certificate", certs: []*x509.Certificate{cert("bob", time.Hour)}, user: "bob", total: 2},
		{name: "no certificate", total: 2},
		{name: "expired", certs: []*x509.Certificate{cert("old", -time.Second)}, user: "old", total: 3},
		{name: "expired CA in the chain", certs: []*x509.Certificate{cert("eve", time.Hour), cert("ca", -time.Second)}, user: "eve", total: 4},
	}
	for _, step := range steps {
		got, err := authenticate(step.certs...)
		require.NoError(t, err, step.name)
		require.Equal(t, step.user, got, step.name)
		require.Equal(t, step.total, verifications, step.name)
	}
	repeat := func(i int) string {
		got, err := authenticate(steps[i].certs...)
		require.NoError(t, err)
		return got
	}
	require.Equal(t, "ann", repeat(0))
	require.Equal(t, "bob", repeat(1))
	require.Equal(t, 4, verifications, "valid certificates must be cached")
	repeat(3)
	repeat(4)
	require.Equal(t, 6, verifications, "expired certificates must be verified again")

	roots = x509.NewCertPool()
	repeat(0)
	require.Equal(t, 7, verifications, "cached results must not be used with other CAs")
	refuse = errors.New("no")
	for range 2 {
		_, err := authenticate(cert("new", time.Hour))
		require.ErrorIs(t, err, refuse)
	}
	require.Equal(t, 9, verifications, "failures must not be cached")
	refuse = nil
	for range rememberAtMost + 10 {
		_, err := authenticate(cert("many", time.Hour))
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(c.valid.Keys()), rememberAtMost)
	roots = nil
	_, err := authenticate(cert("ann", time.Hour))
	require.NoError(t, err, "requests must not fail without CAs")
}
