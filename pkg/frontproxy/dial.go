package frontproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

const (
	dialTimeout      = 5 * time.Second
	handshakeTimeout = 10 * time.Second
	keepAlive        = 30 * time.Second
	// maxDials is how many connections a transport makes at a time.
	maxDials = 4
)

var (
	// errSuperfluous ends a connection that nobody waits for any more, so that nobody is told.
	errSuperfluous = errors.New("no request waits for this connection")
	// errNoPlace is for who has waited too long to make one. That says nothing of the server: clients
	// can cause it.
	errNoPlace = errors.New("too many connections are being made")
)

func newDialer() *net.Dialer { return &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive} }

// connector makes connections with TLS.
type connector func(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error)

// connect returns the connector that dials with dialer.
func connect(dialer *net.Dialer) connector {
	return func(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
		plain, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if superfluous(ctx) { // before what costs both sides most
			_ = plain.Close()
			return nil, errSuperfluous
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

// few returns dial for few connections at a time, each of which carries many requests. net/http dials for
// each request that finds no room on the connections that there are, and the first connection takes most
// of those that wait. Without a bound, a burst of one tenant costs a shard as many handshakes as it has
// requests, and above its --limit anonymous-connections the shard closes connections that carry requests
// of others.
func few(dial connector) connector {
	places := make(chan struct{}, maxDials)
	return func(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
		timer := time.NewTimer(dialTimeout)
		defer timer.Stop()
		select {
		case places <- struct{}{}:
		case <-timer.C:
			return nil, errNoPlace
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		defer func() { <-places }()
		if superfluous(ctx) {
			return nil, errSuperfluous
		}
		return dial(ctx, network, addr, config)
	}
}

// superfluous reports whether the request for which a connection is made waits for none any more. The context
// of a connection does not end with the request's, but has its values.
func superfluous(ctx context.Context) bool {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	return ok && !a.waits()
}
