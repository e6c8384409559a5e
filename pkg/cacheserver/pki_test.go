package cacheserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// pki is a CA that signs everything a test needs, with the files of a server.
type pki struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	caPEM                     []byte
	caFile, certFile, keyFile string
}

func newPKI(t testing.TB) *pki {
	t.Helper()
	p := &pki{}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test-ca"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	p.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	p.key = key
	p.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})

	dir := t.TempDir()
	p.caFile, p.certFile, p.keyFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	cert, certKey := p.issue(t, "server")
	for file, content := range map[string][]byte{p.caFile: p.caPEM, p.certFile: cert, p.keyFile: certKey} {
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	return p
}

// issue returns a certificate and its key, good for 127.0.0.1 and for clients.
func (p *pki) issue(t testing.TB, name string, groups ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// user returns a client configuration with a certificate of the user.
func (p *pki) user(t testing.TB, host, name string, groups ...string) *rest.Config {
	t.Helper()
	cert, key := p.issue(t, name, groups...)
	return &rest.Config{Host: host, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.caPEM, CertData: cert, KeyData: key}}
}

// master returns the client configuration of a system:masters user.
func (p *pki) master(t testing.TB, host string) *rest.Config {
	t.Helper()
	return p.user(t, host, "master", "system:masters")
}

// anonymous returns a client configuration without credentials.
func (p *pki) anonymous(host string) *rest.Config {
	return &rest.Config{Host: host, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.caPEM}}
}
