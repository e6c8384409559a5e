// Package connections limits the connections of a server.
//
//	accepted ─► anonymous: handshake, idle, ─► owned by the user ─► closed
//	            unauthenticated requests        of the first request
//
// If there are too many anonymous connections, the oldest one of the address with most of them is closed. If a user has
// too many, a request on a new one is rejected, and the connection is closed.
//
// The connection of a request is determined by the local address in its context, because
// http.Server passes nothing else from the listener.
package connections

import (
	"container/list"
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// networkBits is the prefix length of an IPv6 network. A client in it can use all of its addresses.
const networkBits = 64

// Listener limits the connections that it accepts. It is safe for concurrent use.
type Listener struct {
	net.Listener

	// most is the maximum number of anonymous connections; 0 means no limit.
	most   int
	users  *ledger.Ledger
	open   *prometheus.GaugeVec
	closed prometheus.Counter

	mu    sync.Mutex
	conns map[*conn]struct{}
	// anonymous are the connections without an authenticated request by network, oldest first; waiting is their number.
	anonymous map[netip.Prefix]*list.List
	waiting   int
	accepted  uint64
}

// NewListener returns a listener that limits the connections of l. registerer may be nil.
func NewListener(l net.Listener, limits ledger.Limits, registerer prometheus.Registerer) *Listener {
	return &Listener{
		Listener: l, most: int(limits[ledger.AnonymousConnections]), users: limits.Ledger(ledger.ConnectionsResource, 0, registerer),
		conns: map[*conn]struct{}{}, anonymous: map[netip.Prefix]*list.List{},
		open: instruments.NewGaugeVec(registerer, "shardplane_connections_open",
			"Client connections, by state: authenticated (after the first authenticated request) or anonymous.", "state"),
		closed: instruments.NewCounter(registerer, "shardplane_connections_closed_total",
			"Anonymous connections that were closed because of --limit anonymous-connections."),
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l, network: networkOf(accepted.RemoteAddr())}
	if evicted := l.add(c); evicted != nil {
		l.closed.Inc()
		_ = evicted.Close()
	}
	return c, nil
}

// CloseAll closes all connections that remain after the graceful shutdown of a server. Otherwise, their clients
// would not reconnect while the process runs.
func (l *Listener) CloseAll() {
	l.mu.Lock()
	remaining := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	for _, c := range remaining {
		_ = c.Close()
	}
}

func (l *Listener) add(c *conn) (evicted *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	l.accepted++
	c.number = l.accepted
	of := l.anonymous[c.network]
	if of == nil {
		of = list.New()
		l.anonymous[c.network] = of
	}
	c.element = of.PushBack(c)
	l.waiting++
	l.open.WithLabelValues(anonymous).Inc()
	if l.most == 0 || l.waiting <= l.most {
		return nil
	}
	most := 0
	for _, of := range l.anonymous {
		oldest, _ := of.Front().Value.(*conn)
		if of.Len() > most || of.Len() == most && oldest.number < evicted.number {
			most, evicted = of.Len(), oldest
		}
	}
	return evicted
}

// removeAnonymous removes a connection from the anonymous connections. The caller holds the lock.
func (l *Listener) removeAnonymous(c *conn) {
	of := l.anonymous[c.network]
	of.Remove(c.element)
	c.element = nil
	if of.Len() == 0 {
		delete(l.anonymous, c.network)
	}
	l.waiting--
	l.open.WithLabelValues(anonymous).Dec()
}

type conn struct {
	net.Conn
	listener *Listener
	network  netip.Prefix // the network of the client
	owned    atomic.Bool  // whether there was an authenticated request

	// The remaining fields are protected by the listener's lock.

	number  uint64
	element *list.Element // in the list of anonymous connections
	release func()        // returns the slot, if the connection is counted
}

type localAddr struct {
	net.Addr
	conn *conn
}

func (c *conn) LocalAddr() net.Addr { return localAddr{c.Conn.LocalAddr(), c} }

func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

func (c *conn) leave() {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, isOpen := l.conns[c]; !isOpen {
		return
	}
	delete(l.conns, c)
	if c.element != nil {
		l.removeAnonymous(c)
		return
	}
	l.open.WithLabelValues(authenticated).Dec()
	if c.release != nil {
		c.release()
	}
}

// assign assigns an anonymous connection to the user of ctx. If counted is set, it is counted, which may fail.
func (c *conn) assign(ctx context.Context, counted bool) error {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.element == nil {
		return nil
	}
	if counted {
		release, err := l.users.TakeFor(ctx, 1)
		if err != nil {
			return err
		}
		c.release = release
	}
	l.removeAnonymous(c)
	l.open.WithLabelValues(authenticated).Inc()
	c.owned.Store(true)
	return nil
}

// WithOwner returns the filter that assigns connections to the user of their first authenticated request, and limits
// their number per user. It must come after authentication. Connections of exempt users, and of servers that forward
// requests of many users (forwarded, which may be nil), are not counted.
func WithOwner(next http.Handler, forwarded func(*http.Request) bool, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addr, _ := r.Context().Value(http.LocalAddrContextKey).(localAddr)
		c := addr.conn
		if u, ok := apirequest.UserFrom(r.Context()); c == nil || c.owned.Load() || !ok || u.GetName() == user.Anonymous {
			next.ServeHTTP(w, r)
			return
		}
		counted := !identity.IsExempt(r.Context()) && (forwarded == nil || !forwarded(r))
		if err := c.assign(r.Context(), counted); err != nil {
			w.Header().Set("Connection", "close")
			refuse(w, r, err.Error()+": send more requests on each connection, or close some")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func networkOf(addr net.Addr) netip.Prefix {
	from, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := from.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = networkBits
	}
	network, _ := ip.Prefix(bits) // it is zero in case of an error
	return network
}

const (
	anonymous     = "anonymous"
	authenticated = "authenticated"
)
