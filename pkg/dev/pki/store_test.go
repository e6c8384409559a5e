package pki

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	today   = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	serving = Spec{
		CommonName: "localhost",
		DNSNames:   []string{"localhost"},
		IPs:        []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

// fill creates an authority and a serving certificate.
func fill(t *testing.T, s *Store) (*Pair, *Pair) {
	t.Helper()
	ca, err := s.Authority("ca")
	require.NoError(t, err)
	pair, err := s.Certificate("leaf", ca, serving)
	require.NoError(t, err)
	return ca, pair
}

func TestMakesUsableCertificates(t *testing.T) {
	s := NewStore(t.TempDir(), at(today))
	ca, pair := fill(t, s)
	require.Empty(t, s.Notes)
	require.Equal(t, 2, s.Made)

	_, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca.CertPEM))
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		_, err := pair.cert.Verify(x509.VerifyOptions{DNSName: host, Roots: pool, CurrentTime: today})
		require.NoError(t, err, host)
	}

	info, err := os.Stat(pair.KeyFile)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	client, err := s.Certificate("client", ca, Client("kcp-admin", "system:kcp:admin"))
	require.NoError(t, err)
	require.Equal(t, "kcp-admin", client.cert.Subject.CommonName)
	require.Equal(t, []string{"system:kcp:admin"}, client.cert.Subject.Organization)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, client.cert.ExtKeyUsage)
}

// TestRSAAuthority covers kcp's test helpers, which sign with the client CA (sdk/testing/server).
func TestRSAAuthority(t *testing.T) {
	dir := t.TempDir()
	ca, err := NewStore(dir, at(today)).RSAAuthority("ca")
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(ca.CertPEM, ca.KeyPEM)
	require.NoError(t, err)
	user := Client("user").template()
	user.SignatureAlgorithm, user.SerialNumber = x509.SHA256WithRSA, big.NewInt(1)
	_, err = x509.CreateCertificate(rand.Reader, user, ca.cert, ca.key.Public(), pair.PrivateKey)
	require.NoError(t, err)

	again, err := NewStore(dir, at(today.Add(authorityLifetime))).RSAAuthority("ca")
	require.NoError(t, err)
	require.Equal(t, ca.KeyPEM, again.KeyPEM, "a renewal must keep the key")
	leaf, err := NewStore(dir, at(today)).Certificate("leaf", again, serving)
	require.NoError(t, err)
	require.NoError(t, leaf.cert.CheckSignatureFrom(again.cert))

	other := t.TempDir()
	old, err := NewStore(other, at(today)).Authority("ca")
	require.NoError(t, err)
	kept, err := NewStore(other, at(today)).RSAAuthority("ca")
	require.NoError(t, err)
	require.Equal(t, old.CertPEM, kept.CertPEM, "certificates that the authority has signed must remain valid")
}

func TestReusesExistingCertificates(t *testing.T) {
	dir := t.TempDir()
	ca, pair := fill(t, NewStore(dir, at(today)))
	again := NewStore(dir, at(today.Add(24*time.Hour)))
	caAgain, pairAgain := fill(t, again)
	require.Equal(t, ca.CertPEM, caAgain.CertPEM)
	require.Equal(t, pair.CertPEM, pairAgain.CertPEM)
	require.Equal(t, pair.KeyPEM, pairAgain.KeyPEM)
	require.Empty(t, again.Notes)
	require.Zero(t, again.Made)
}

func TestRenewsBeforeExpiry(t *testing.T) {
	dir := t.TempDir()
	ca, pair := fill(t, NewStore(dir, at(today)))

	later := NewStore(dir, at(today.Add(certificateLifetime-renewBefore/2)))
	caLater, pairLater := fill(t, later)
	require.Equal(t, ca.CertPEM, caLater.CertPEM, "the authority must not be renewed yet")
	require.NotEqual(t, pair.CertPEM, pairLater.CertPEM)
	require.Equal(t, pair.KeyPEM, pairLater.KeyPEM, "a renewal must keep the key")
	require.Equal(t, []string{"certificate leaf renewed: it would have expired on 2027-11-20"}, later.Notes)

	muchLater := NewStore(dir, at(today.Add(authorityLifetime+time.Hour)))
	caMuchLater, pairMuchLater := fill(t, muchLater)
	require.Equal(t, []string{
		"certificate ca renewed: it expired on 2036-11-17",
		"certificate leaf renewed: it expired on 2028-11-04",
	}, muchLater.Notes)
	require.NoError(t, pairMuchLater.cert.CheckSignatureFrom(caMuchLater.cert))
	require.NoError(t, pairLater.cert.CheckSignatureFrom(caMuchLater.cert),
		"certificates of the old authority must be valid under the renewed one")
}

func TestCertificateExpiresWithItsAuthority(t *testing.T) {
	dir := t.TempDir()
	ca, _ := fill(t, NewStore(dir, at(today)))
	_, pair := fill(t, NewStore(dir, at(today.Add(authorityLifetime-renewBefore-time.Hour))))
	require.Equal(t, ca.cert.NotAfter, pair.cert.NotAfter)
}

func TestReplacesOutdatedCertificates(t *testing.T) {
	dir := t.TempDir()
	fill(t, NewStore(dir, at(today)))

	t.Run("another authority", func(t *testing.T) {
		require.NoError(t, os.Remove(filepath.Join(dir, "ca.crt")))
		require.NoError(t, os.Remove(filepath.Join(dir, "ca.key")))
		s := NewStore(dir, at(today))
		ca, pair := fill(t, s)
		require.Equal(t, []string{"certificate leaf renewed: its authority ca has changed"}, s.Notes)
		require.NoError(t, pair.cert.CheckSignatureFrom(ca.cert))
	})
	for name, test := range map[string]struct {
		spec Spec
		note string
	}{
		"user":  {Client("other"), "certificate leaf renewed: it was for another user"},
		"hosts": {Spec{CommonName: "other", DNSNames: []string{"other"}}, "certificate leaf renewed: it was for other host names"},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStore(dir, at(today))
			ca, err := s.Authority("ca")
			require.NoError(t, err)
			_, err = s.Certificate("leaf", ca, Client("first"))
			require.NoError(t, err)
			_, err = s.Certificate("leaf", ca, Spec{CommonName: test.spec.CommonName})
			require.NoError(t, err)
			s = NewStore(dir, at(today))
			spec := test.spec
			if len(spec.DNSNames) == 0 {
				spec.CommonName = "third"
			}
			_, err = s.Certificate("leaf", ca, spec)
			require.NoError(t, err)
			require.Equal(t, []string{test.note}, s.Notes)
		})
	}
}

func TestCompletesAnInterruptedRun(t *testing.T) {
	dir := t.TempDir()
	_, pair := fill(t, NewStore(dir, at(today)))
	require.NoError(t, os.Remove(pair.CertFile))
	s := NewStore(dir, at(today))
	_, again := fill(t, s)
	require.Equal(t, pair.KeyPEM, again.KeyPEM)
	require.Equal(t, 1, s.Made)
}

func TestRejectsCorruptData(t *testing.T) {
	const noCertificate = "data does not contain any valid RSA or ECDSA certificates"
	const noKey = "data does not contain a valid RSA or ECDSA private key"
	for name, test := range map[string]struct {
		file, contents string
		remove         string
		want           string
	}{
		"garbage certificate": {file: "leaf.crt", contents: "garbage", want: "leaf.crt is corrupt (" + noCertificate + "): remove leaf.crt and leaf.key"},
		"empty certificate":   {file: "leaf.crt", contents: "", want: "leaf.crt is corrupt (" + noCertificate},
		"garbage key":         {file: "ca.key", contents: "garbage", want: "ca.key is corrupt (" + noKey + "): remove ca.crt and ca.key"},
		"other block":         {file: "ca.crt", contents: "-----BEGIN X-----\nAAAA\n-----END X-----\n", want: "ca.crt is corrupt (" + noCertificate},
		"truncated certificate": {
			file:     "leaf.crt",
			contents: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
			want:     "leaf.crt is corrupt (x509: ",
		},
		"missing key": {remove: "ca.key", want: "ca.crt is corrupt (its key ca.key is missing): restore the key, or remove the certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fill(t, NewStore(dir, at(today)))
			if test.remove != "" {
				require.NoError(t, os.Remove(filepath.Join(dir, test.remove)))
			} else {
				require.NoError(t, os.WriteFile(filepath.Join(dir, test.file), []byte(test.contents), 0o600))
			}
			s := NewStore(dir, at(today))
			ca, err := s.Authority("ca")
			if err == nil {
				_, err = s.Certificate("leaf", ca, serving)
			}
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}

	t.Run("swapped files", func(t *testing.T) {
		dir := t.TempDir()
		ca, _ := fill(t, NewStore(dir, at(today)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "leaf.crt"), ca.CertPEM, 0o600))
		s := NewStore(dir, at(today))
		_, err := s.Certificate("leaf", ca, serving)
		require.ErrorContains(t, err, "it does not belong to leaf.key")
	})
	t.Run("not an authority", func(t *testing.T) {
		s := NewStore(t.TempDir(), at(today))
		fill(t, s)
		_, err := s.Authority("leaf")
		require.ErrorContains(t, err, "it is not a certificate authority")
	})
}
