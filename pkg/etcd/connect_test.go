package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	certutil "k8s.io/client-go/util/cert"
)

// certificates creates a CA and a certificate for 127.0.0.1.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	authority, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "ca"}, caKey)
	require.NoError(t, err)
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "etcd"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, leafKey.Public(), caKey)
	require.NoError(t, err)
	leafKeyDER, err := x509.MarshalECPrivateKey(leafKey)
	require.NoError(t, err)
	ca = write("ca.crt", "CERTIFICATE", authority.Raw)
	return ca, write("etcd.crt", "CERTIFICATE", leafDER), write("etcd.key", "EC PRIVATE KEY", leafKeyDER)
}

// external starts an etcd that requires client certificates.
func external(t *testing.T, ca, cert, key string) string {
	t.Helper()
	cfg := Config{DataDir: t.TempDir(), UnsafeNoFsync: true}.embedConfig(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := url.URL{Scheme: "https", Host: listener.Addr().String()}
	require.NoError(t, listener.Close())
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{address}, []url.URL{address}
	cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = cert, key
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = ca, true
	server, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	<-server.Server.ReadyNotify()
	return address.String()
}

func TestConnect(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificates(t)
	address := external(t, ca, cert, key)
	c, err := (&Options{Servers: []string{address}, CAFile: ca, CertFile: cert, KeyFile: key}).connect(t.Context())
	require.NoError(t, err)
	_, err = c.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	got, err := c.Count(t.Context(), "a", kubernetes.CountOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, got)
	require.NoError(t, c.Close())

	otherCA, otherCert, otherKey := certificates(t)
	for name, tc := range map[string]struct {
		Options

		why string
	}{
		"no certificate":    {Options{CAFile: ca}, "tls: certificate required"},
		"other certificate": {Options{CAFile: ca, CertFile: otherCert, KeyFile: otherKey}, "tls: unknown certificate authority"},
		"other CA":          {Options{CAFile: otherCA, CertFile: cert, KeyFile: key}, "x509: certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := tc.Options
			options.Servers = []string{address}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := options.connect(ctx)
			require.ErrorContains(t, err, address)
			require.ErrorContains(t, err, "--etcd-servers")
			require.ErrorContains(t, err, tc.why)
		})
	}
}

func TestConnectIsRefused(t *testing.T) {
	t.Parallel()
	_, cert, key := certificates(t)
	for want, options := range map[string]*Options{
		"requires URLs":             {Servers: []string{"host:2379"}},
		"TLS files for etcd":        {Servers: []string{"https://127.0.0.1:1"}, CertFile: cert, KeyFile: cert},
		"no such file or directory": {Servers: []string{"https://127.0.0.1:1"}, CAFile: "/nonexistent", CertFile: cert, KeyFile: key},
	} {
		_, err := options.connect(t.Context())
		require.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := (&Options{Servers: []string{"http://127.0.0.1:1"}}).connect(ctx)
	require.ErrorContains(t, err, "does not respond")
}
