package frontproxy

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/shardplane/shardplane/pkg/peers"
)

// attempt is a request to a shard, as far as its connection goes.
type attempt struct {
	peer *peers.Peer
	// outside is set if the peer's failures are no news of the installation.
	outside bool
	// connected is whether it has ever had one, and looking whether it looks for one.
	connected, looking atomic.Bool
	// over is closed when the client has left.
	over <-chan struct{}
}

type attemptKey struct{}

// waits reports whether the request waits for a connection.
func (a *attempt) waits() bool {
	select {
	case <-a.over:
		return false
	default:
		return a.looking.Load()
	}
}

// newAttempt returns a context for a request to a peer that ctx is of, and what is known of the request.
func newAttempt(ctx context.Context, peer *peers.Peer, outside bool) (context.Context, *attempt) {
	a := &attempt{peer: peer, outside: outside, over: ctx.Done()}
	return httptrace.WithClientTrace(context.WithValue(ctx, attemptKey{}, a), &httptrace.ClientTrace{
		GetConn: func(string) { a.looking.Store(true) },
		GotConn: func(httptrace.GotConnInfo) {
			a.connected.Store(true)
			a.looking.Store(false)
			peer.Observe(ctx, true, nil)
		},
	}), a
}

// failed notes why a request has failed, which is bad news of the shard if there was no connection
// in time; ctx is the client's, who may have left.
func (a *attempt) failed(ctx context.Context, err error) {
	if !a.outside && !a.connected.Load() && ctx.Err() == nil && hangs(err) {
		a.peer.Observe(ctx, false, err)
	}
}

// hangs reports whether a connection to a shard took too long, so that nobody else
// should wait for one. A shard that refuses connections costs nobody a wait, and
// is served again as soon as it is back; other errors clients can cause.
func hangs(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}
