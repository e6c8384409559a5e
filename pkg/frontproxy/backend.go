package frontproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/peers"
)

const (
	// continueTimeout is how long a shard may take to respond to "Expect: 100-continue".
	continueTimeout = 30 * time.Second
	idleTimeout     = 90 * time.Second
	//reference:none
	maxIdle = 512
	// An HTTP/2 connection is tested after pingAfter without traffic, and fails after pingTimeout.
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
	// readAhead is the number of bytes of a response that are buffered before the client reads
	// them. mergedReadAhead is this number for each shard in a merged watch.
	//
	//reference:none
	readAhead       = 512 << 10
	mergedReadAhead = 64 << 10
)

// quietLog discards messages of the reverse proxy: they are about broken connections, which metrics count.
var quietLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)

type backend struct {
	*peers.Peer
	base   *url.URL
	prefix string
	// multiplexed is for all requests except upgrades, which HTTP/2 does not support.
	multiplexed, upgrades *http.Transport
	// parts is for watches that are merged with those of other shards. Only shards have it.
	parts *http.Transport
	// external is set for servers of tenants. Their failures must not affect the health of shards.
	external bool
}

func newBackend(shard *peers.Peer, config *tls.Config) *backend {
	base, _ := url.Parse(shard.URL) // validated by peers
	b := &backend{
		Peer: shard, base: base, prefix: strings.TrimSuffix(base.EscapedPath(), "/"),
		multiplexed: newTransport(config, true, readAhead), upgrades: newTransport(config, false, readAhead), parts: newTransport(config, true, mergedReadAhead),
	}
	for _, t := range []*http.Transport{b.multiplexed, b.parts} {
		dial := limitDials(connect(newDialer()))
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dial(ctx, network, addr, t.TLSClientConfig)
		}
	}
	return b
}

func newTransport(config *tls.Config, http2 bool, readAhead int) *http.Transport {
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

		// The shard requests the body after it has authorized the request. If the front-proxy did so,
		// it would disclose that there is a shard.
		ExpectContinueTimeout: continueTimeout,
		// Encodings are negotiated between client and shard.
		DisableCompression: true,
		Protocols:          &protocols,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxReceiveBufferPerStream: readAhead},
	}
}

func (b *backend) way() *backend { return b }

func (b *backend) transport(upgrade bool) http.RoundTripper {
	if upgrade {
		return b.upgrades
	}
	return b.multiplexed
}

// get returns a GET request for an escaped path.
func (b *backend) get(ctx context.Context, escaped, query string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.URL.RawPath, r.URL.RawQuery = b.prefix+escaped, query
	r.URL.Path, err = url.PathUnescape(r.URL.RawPath)
	return r, err
}

func (b *backend) retire() {
	b.multiplexed.CloseIdleConnections()
	b.upgrades.CloseIdleConnections()
	if b.parts != nil {
		b.parts.CloseIdleConnections()
	}
}

// dialWith makes t verify servers with the current CAs, which may be reloaded.
func dialWith(t *http.Transport, dial connector, ca dynamiccertificates.CAContentProvider, protocols ...string) {
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		config := t.TLSClientConfig.Clone()
		config.NextProtos = protocols
		verify, ok := ca.VerifyOptions()
		if !ok {
			return nil, errors.New("no CA certificates to verify the server")
		}
		config.RootCAs = verify.Roots
		return dial(ctx, network, addr, config)
	}
}

// clientCertificate presents the current certificate, which may be reloaded.
func clientCertificate(client dynamiccertificates.CertKeyContentProvider) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(client.CurrentCertKeyContent())
		return &pair, err
	}
}

type attempt struct {
	peer     *peers.Peer
	external bool // the peer is not part of the installation
	// connected is set once there was a connection, and waiting while the request waits for one.
	connected, waiting atomic.Bool
	over               func() error // the error of the request's context
}

type attemptKey struct{}

func (a *attempt) isWaiting() bool { return a.over() == nil && a.waiting.Load() }

func newAttempt(ctx context.Context, peer *peers.Peer, external bool) (context.Context, *attempt) {
	a := &attempt{peer: peer, external: external, over: ctx.Err}
	return httptrace.WithClientTrace(context.WithValue(ctx, attemptKey{}, a), &httptrace.ClientTrace{
		GetConn: func(string) { a.waiting.Store(true) },
		GotConn: func(httptrace.GotConnInfo) {
			a.connected.Store(true)
			a.waiting.Store(false)
			peer.Observe(ctx, true, nil)
		},
	}), a
}

// failed reports the peer as unreachable if there was no connection in time. ctx is the context of
// the client, which may have disconnected.
func (a *attempt) failed(ctx context.Context, err error) {
	if !a.external && !a.connected.Load() && ctx.Err() == nil && isTimeout(err) {
		a.peer.Observe(ctx, false, err)
	}
}

// isTimeout reports whether connecting took too long, so that other requests should not wait. Shards that
// refuse connections cause no wait, and clients can cause other errors.
func isTimeout(err error) bool {
	network, ok := errors.AsType[net.Error](err)
	return ok && network.Timeout()
}

const (
	dialTimeout      = 5 * time.Second
	handshakeTimeout = 10 * time.Second
	keepAlive        = 30 * time.Second
	// maxDials limits the connections that a transport makes concurrently.
	//
	//reference:limit shard | connections that a front-proxy opens concurrently | 503 after 5 s
	maxDials = 4
)

var (
	// errNotNeeded ends a connection that no request waits for.
	errNotNeeded = errors.New("no request waits for this connection")
	// errTooManyDials does not affect the health of the peer, because clients can cause it.
	errTooManyDials = errors.New("too many connections are being made")
)

func newDialer() *net.Dialer { return &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive} }

type connector func(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error)

func connect(dialer *net.Dialer) connector {
	return func(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
		plain, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if notNeeded(ctx) { // before the expensive handshake
			_ = plain.Close()
			return nil, errNotNeeded
		}
		if config.ServerName == "" {
			config = config.Clone()
			if config.ServerName, _, err = net.SplitHostPort(addr); err != nil {
				_ = plain.Close()
				return nil, err
			}
		}
		secure := tls.Client(plain, config)
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = plain.Close()
			return nil, err
		}
		return secure, nil
	}
}

// limitDials limits how many connections dial makes concurrently. net/http dials for each request that no existing
// connection can take, although the first new connection takes most of the waiting requests. Without a limit, a
// burst of one tenant would cause one handshake per request. Above --limit anonymous-connections, the shard would
// then close connections with requests of other tenants.
func limitDials(dial connector) connector {
	slots := make(chan struct{}, maxDials)
	return func(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
		select {
		case slots <- struct{}{}:
		case <-time.After(dialTimeout):
			return nil, errTooManyDials
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		defer func() { <-slots }()
		if notNeeded(ctx) {
			return nil, errNotNeeded
		}
		return dial(ctx, network, addr, config)
	}
}

// notNeeded reports whether no request waits for a connection. ctx has the values of the request, but ends later.
func notNeeded(ctx context.Context) bool {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	return ok && !a.isWaiting()
}
