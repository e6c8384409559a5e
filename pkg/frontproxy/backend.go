package frontproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/peers"
)

const (
	// continueTimeout is how long a shard may think about whether it wants a
	// body that the client offers with "Expect: 100-continue".
	continueTimeout = 30 * time.Second
	idleTimeout     = 90 * time.Second
	maxIdle         = 512
	// pingAfter is after how much silence an HTTP/2 connection is tested, and
	// pingTimeout how long the shard may take to answer.
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
	// ahead is how much of an answer in bytes comes from a shard before its client has
	// read any of it.
	ahead = 512 << 10
	// aheadOfMerged is the same of one shard, in a watch of all.
	aheadOfMerged = 64 << 10
)

// quietLog drops what the reverse proxy logs: all of it is about connections
// that broke, which metrics count.
var quietLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)

// backend is the way to one shard: its address and kept-alive connections.
type backend struct {
	*peers.Peer
	base   *url.URL
	prefix string
	// multiplexed carries all requests, upgrades those that ask for another
	// protocol, which HTTP/2 has no way to.
	multiplexed, upgrades *http.Transport
	// parts carries watches that are merged with those of other shards. Only shards have it.
	parts *http.Transport
	// outside is set for servers of tenants, whose failures are no news of the installation.
	outside bool
}

func newBackend(shard *peers.Peer, config *tls.Config) *backend {
	base, _ := url.Parse(shard.URL) // the book has done so before
	b := &backend{
		Peer: shard, base: base, prefix: strings.TrimSuffix(base.EscapedPath(), "/"),
		multiplexed: newTransport(config, true, ahead), upgrades: newTransport(config, false, ahead), parts: newTransport(config, true, aheadOfMerged),
	}
	for _, t := range []*http.Transport{b.multiplexed, b.parts} {
		dial := few(connect(newDialer()))
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dial(ctx, network, addr, t.TLSClientConfig)
		}
	}
	return b
}

func newTransport(config *tls.Config, http2 bool, ahead int) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(http2)
	return &http.Transport{
		DialContext:         newDialer().DialContext,
		TLSClientConfig:     config.Clone(),
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConns:        maxIdle,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     idleTimeout,

		// The shard asks for the body once it has authorized the request. Asked
		// for by the front-proxy, it would tell everybody that there is a shard.
		ExpectContinueTimeout: continueTimeout,
		// Encodings are between client and shard.
		DisableCompression: true,
		Protocols:          &protocols,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxReceiveBufferPerStream: ahead},
	}
}

func (b *backend) transport(upgrade bool) http.RoundTripper {
	if upgrade {
		return b.upgrades
	}
	return b.multiplexed
}

// attempt returns a context for a request that ctx is of, and what is known of the request. That
// there is a connection is good news of the shard; if there is none, failed has to be told.
func (b *backend) attempt(ctx context.Context) (context.Context, *attempt) {
	return newAttempt(ctx, b.Peer, b.outside)
}

// retire closes what is idle; requests in flight go on, and close the rest.
func (b *backend) retire() {
	b.multiplexed.CloseIdleConnections()
	b.upgrades.CloseIdleConnections()
	if b.parts != nil {
		b.parts.CloseIdleConnections()
	}
}

// dialWith has t verify servers by the CAs as they are when it connects.
func dialWith(t *http.Transport, dial connector, ca dynamiccertificates.CAContentProvider, protocols ...string) {
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		config := t.TLSClientConfig.Clone()
		config.NextProtos = protocols
		verify, ok := ca.VerifyOptions()
		if !ok {
			return nil, errors.New("there is no CA to verify the server by")
		}
		config.RootCAs = verify.Roots
		return dial(ctx, network, addr, config)
	}
}

// newTLSConfig returns the configuration of connections to shards: the CAs that
// identify them and the certificate that lets the front-proxy speak for users.
func newTLSConfig(caFile string, client dynamiccertificates.CertKeyContentProvider) (*tls.Config, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("reading --shard-ca-file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading --shard-ca-file: %s holds no PEM certificate", caFile)
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		RootCAs:              roots,
		GetClientCertificate: clientCertificate(client),
	}, nil
}

// clientCertificate returns what presents a certificate as it is when a connection is made.
func clientCertificate(client dynamiccertificates.CertKeyContentProvider) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(client.CurrentCertKeyContent())
		return &pair, err
	}
}
