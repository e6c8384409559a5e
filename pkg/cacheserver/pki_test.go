package cacheserver_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	devpki "github.com/shardplane/shardplane/pkg/dev/pki"
)

// pki is a CA that signs everything a test needs, with the files of a server.
type pki struct {
	store                     *devpki.Store
	ca                        *devpki.Pair
	caPEM                     []byte
	caFile, certFile, keyFile string
}

func newPKI(t testing.TB) *pki {
	t.Helper()
	store := devpki.NewStore(t.TempDir(), time.Now)
	ca, err := store.Authority("ca")
	require.NoError(t, err)
	server, err := store.Certificate("server", ca, devpki.Spec{IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	require.NoError(t, err)
	return &pki{
		store: store, ca: ca, caPEM: ca.CertPEM,
		caFile: ca.CertFile, certFile: server.CertFile, keyFile: server.KeyFile,
	}
}

// issue returns the certificate of a user and its key.
func (p *pki) issue(t testing.TB, name string, groups ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	pair, err := p.store.Certificate(name, p.ca, devpki.Client(name, groups...))
	require.NoError(t, err)
	return pair.CertPEM, pair.KeyPEM
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
