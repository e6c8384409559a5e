package connections

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// siteBits is how much of an IPv6 address says whose it is: who has one has all
// that begin like it.
const siteBits = 64

// Listener bounds what it accepts, and knows what is open of it. It is safe for
// concurrent use.
type Listener struct {
	net.Listener

	// most is how many anonymous connections there may be; 0 is any number.
	most    int
	users   *ledger.Ledger
	metrics metrics

	mu    sync.Mutex
	conns map[*conn]struct{}
	// anonymous are the connections on which nobody has authenticated, of each
	// address the oldest first, and waiting is their number.
	anonymous map[netip.Prefix]*list.List
	waiting   int
	// accepted is how many there have been.
	accepted uint64
}

// New returns a listener for what l accepts, within those limits. Its metrics go to registerer, which may be nil.
func New(l net.Listener, limits ledger.Limits, registerer prometheus.Registerer) *Listener {
	return &Listener{
		Listener: l, most: int(limits[ledger.AnonymousConnections]), users: limits.Ledger(ledger.ConnectionsResource, 0, registerer),
		metrics: newMetrics(registerer), conns: map[*conn]struct{}{}, anonymous: map[netip.Prefix]*list.List{},
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l, site: siteOf(accepted.RemoteAddr())}
	if superfluous := l.add(c); superfluous != nil {
		l.metrics.closed.Inc()
		_ = superfluous.Close()
	}
	return c, nil
}

// CloseAll closes the connections that are open. A graceful shutdown of a server
// gives up on some, whose clients would be told for ever that it is shutting down
// where the process lives on.
func (l *Listener) CloseAll() {
	l.mu.Lock()
	left := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		left = append(left, c)
	}
	l.mu.Unlock()
	for _, c := range left {
		_ = c.Close()
	}
}

// add adds a connection, and returns the one that is to be closed for it, if any.
func (l *Listener) add(c *conn) (superfluous *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	l.accepted++
	c.number = l.accepted
	of := l.anonymous[c.site]
	if of == nil {
		of = list.New()
		l.anonymous[c.site] = of
	}
	c.place = of.PushBack(c)
	l.waiting++
	l.metrics.open.WithLabelValues(anonymous).Inc()
	if l.most == 0 || l.waiting <= l.most {
		return nil
	}
	most := 0
	for _, of := range l.anonymous {
		oldest, _ := of.Front().Value.(*conn)
		if of.Len() > most || of.Len() == most && oldest.number < superfluous.number {
			most, superfluous = of.Len(), oldest
		}
	}
	return superfluous
}

// known takes a connection away from the anonymous ones. The caller holds the lock.
func (l *Listener) known(c *conn) {
	of := l.anonymous[c.site]
	of.Remove(c.place)
	c.place = nil
	if of.Len() == 0 {
		delete(l.anonymous, c.site)
	}
	l.waiting--
	l.metrics.open.WithLabelValues(anonymous).Dec()
}

// conn is a connection of a client.
type conn struct {
	net.Conn
	listener *Listener
	// site is where it comes from.
	site netip.Prefix
	// owned is whether somebody has authenticated, whose it is then.
	owned atomic.Bool

	// What follows is under the listener's lock.

	number uint64
	// place is that among the anonymous ones.
	place *list.Element
	// give returns its place, if somebody pays for it.
	give   func()
	closed bool
}

// localAddr is the local address of a connection, which leads to it.
type localAddr struct {
	net.Addr
	conn *conn
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return localAddr{c.Conn.LocalAddr(), c} }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

func (c *conn) leave() {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	delete(l.conns, c)
	if c.place != nil {
		l.known(c)
		return
	}
	l.metrics.open.WithLabelValues(authenticated).Dec()
	if c.give != nil {
		c.give()
	}
}

// belong makes a connection that of the user of ctx, or of nobody who pays, unless it is
// somebody's. The error says why the user may not have it.
func (c *conn) belong(ctx context.Context, pays bool) error {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed || c.place == nil {
		return nil
	}
	if pays {
		give, err := l.users.TakeFor(ctx, 1)
		if err != nil {
			return err
		}
		c.give = give
	}
	l.known(c)
	l.metrics.open.WithLabelValues(authenticated).Inc()
	c.owned.Store(true)
	return nil
}

// WithOwner returns next for requests on connections that are their users', as
// long as these have few enough. It stands behind authentication. What is the
// installation's own, and what forwarded reports to be sent by who forwards the
// requests of many, is not counted; forwarded may be nil. A connection is of who
// sends the first request.
func WithOwner(next http.Handler, forwarded func(*http.Request) bool, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connOf(r.Context())
		if c == nil || c.owned.Load() {
			next.ServeHTTP(w, r)
			return
		}
		if who, ok := apirequest.UserFrom(r.Context()); !ok || who.GetName() == user.Anonymous {
			next.ServeHTTP(w, r)
			return
		}
		pays := !identity.IsExempt(r.Context()) && (forwarded == nil || !forwarded(r))
		if err := c.belong(r.Context(), pays); err != nil {
			w.Header().Set("Connection", "close")
			refuse(w, r, err.Error()+": send more requests on each connection, or close some")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// connOf returns the connection of the request of ctx, or nil.
func connOf(ctx context.Context) *conn {
	addr, _ := ctx.Value(http.LocalAddrContextKey).(localAddr)
	return addr.conn
}

// siteOf returns where a client is: all addresses that it certainly has.
func siteOf(addr net.Addr) netip.Prefix {
	from, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := from.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = siteBits
	}
	site, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return site
}
