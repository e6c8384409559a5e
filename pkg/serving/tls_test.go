package serving_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/serving"
)

// serveTLS serves with the options and returns the address.
func serveTLS(t *testing.T, o serving.TLSOptions) string {
	t.Helper()
	store := pki.NewStore(t.TempDir(), time.Now)
	ca, err := store.Authority("ca")
	require.NoError(t, err)
	pair, err := store.Certificate("server", ca, pki.Spec{CommonName: "localhost", DNSNames: []string{"localhost"}})
	require.NoError(t, err)
	cert, err := dynamiccertificates.NewDynamicServingContentFromFiles("test", pair.CertFile, pair.KeyFile)
	require.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	info := &genericapiserver.SecureServingInfo{Listener: listener, Cert: cert}
	require.Empty(t, o.Validate())
	require.NoError(t, o.ApplyTo(info))
	stop := make(chan struct{})
	stopped, _, err := info.Serve(http.NotFoundHandler(), time.Second, stop)
	require.NoError(t, err)
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return listener.Addr().String()
}

// shake returns what a client and the server agree on.
func shake(t *testing.T, address string, config *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	config.InsecureSkipVerify = true
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState(), nil
}

// TestTLSOptions holds that the flags about TLS are what clients meet.
func TestTLSOptions(t *testing.T) {
	const good, other = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	old := func(suite uint16) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}} //nolint:gosec // what is spoken is the point
	}
	protocols := &tls.Config{NextProtos: []string{"h2", "http/1.1"}} //nolint:gosec // the server chooses

	address := serveTLS(t, serving.NewTLSOptions())
	state, err := shake(t, address, protocols)
	require.NoError(t, err)
	require.Equal(t, "h2", state.NegotiatedProtocol)
	_, err = shake(t, address, &tls.Config{MaxVersion: tls.VersionTLS11}) //nolint:gosec // it is refused
	require.Error(t, err, "TLS 1.2 is the oldest by default")

	o := serving.NewTLSOptions()
	o.CipherSuites = []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
	address = serveTLS(t, o)
	state, err = shake(t, address, old(good))
	require.NoError(t, err)
	require.Equal(t, good, state.CipherSuite)
	_, err = shake(t, address, old(other))
	require.Error(t, err, "a suite that is not listed")
}

func TestTLSOptionsNameTheFlag(t *testing.T) {
	for flag, o := range map[string]serving.TLSOptions{
		"--tls-cipher-suites":                {MaxStreams: 1, CipherSuites: []string{"ROT13"}},
		"--tls-min-version":                  {MaxStreams: 1, MinVersion: "SSL3"},
		"--http2-max-streams-per-connection": {},
	} {
		errs := o.Validate()
		require.Len(t, errs, 1, flag)
		require.ErrorContains(t, errs[0], flag)
	}
}
