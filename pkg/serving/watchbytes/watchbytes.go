// Package watchbytes bounds what the watches of one logical cluster, and those of one
// user, hold of large events: each keeps buffers of the size of its largest one for as long as it lasts,
// since encoders use them again.
package watchbytes

import (
	"bufio"
	"errors"
	"math"
	"net"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/pflag"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/budget"
	"github.com/shardplane/shardplane/pkg/serving/inflight"
)

// least is what a watch counts whose events are smaller, in bytes.
const least = 64 << 10

// errFull and errFullUser end a watch.
var (
	errFull     = errors.New("the watches of this logical cluster hold too much of large events, see --max-watch-bytes-per-cluster")
	errFullUser = errors.New("the watches of this user hold too much of large events, see --max-watch-bytes-per-user")
)

// Limits bound the watches of a server.
type Limits struct {
	// Cluster bounds the sum of the largest events of the watches of one logical
	// cluster, in bytes, each of 64 KiB at least; 0 bounds nothing.
	Cluster int64
	// User bounds that of the watches of one user in all logical clusters, and of all service
	// accounts of one: see identity.Payer. 0 bounds nothing.
	User int64
}

// NewLimits returns the defaults.
func NewLimits() Limits { return Limits{Cluster: 1 << 30, User: 1 << 30} }

// AddFlags adds the flags of l to fs.
func (l *Limits) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&l.Cluster, "max-watch-bytes-per-cluster", l.Cluster, "bytes of the largest events of the open watches of one logical cluster together, each counted as 64 KiB at least: a watch with an event that exceeds that ends, and new ones are answered with 429. 0 means any number")
	fs.Int64Var(&l.User, "max-watch-bytes-per-user", l.User, "bytes of the largest events of the open watches of one user in all logical clusters together, each counted as 64 KiB at least: a watch with an event that exceeds that ends, and new ones are answered with 429; service accounts of one logical cluster count together. 0 means any number")
}

// Validate returns what is wrong with l.
func (l *Limits) Validate() []error {
	var errs []error
	if l.Cluster < 0 {
		errs = append(errs, errors.New("--max-watch-bytes-per-cluster must not be negative"))
	}
	if l.User < 0 {
		errs = append(errs, errors.New("--max-watch-bytes-per-user must not be negative"))
	}
	return errs
}

// held is what watches hold.
type held struct {
	clusters *budget.Budget[logicalcluster.Name]
	users    *budget.Budget[identity.Payer]
}

// each returns limits by which nobody has more than that; 0 is any amount.
func each(limit int64) budget.Limits {
	if limit == 0 {
		limit = math.MaxInt64
	}
	return budget.Limits{Total: math.MaxInt64, Each: limit}
}

func (h held) take(cluster logicalcluster.Name, user identity.Payer, bytes int) error {
	if !h.clusters.Take(cluster, int64(bytes)) {
		return errFull
	}
	if !h.users.Take(user, int64(bytes)) {
		h.clusters.Give(cluster, int64(bytes))
		return errFullUser
	}
	return nil
}

func (h held) give(cluster logicalcluster.Name, user identity.Payer, bytes int) {
	h.clusters.Give(cluster, int64(bytes))
	h.users.Give(user, int64(bytes))
}

// Wrap returns next for watches within the limits. Those of the installation's own
// components have none.
func (l Limits) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck, refuse inflight.Refuse) http.Handler {
	h := held{budget.New[logicalcluster.Name](each(l.Cluster)), budget.New[identity.Payer](each(l.User))}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		cluster, _ := request.ClusterFrom(r.Context())
		// All servers of HTTP notify; recorders of tests need not.
		inner, notifies := w.(responsewriter.CloseNotifierFlusher)
		if l == (Limits{}) || !ok || cluster.Name == "" || !notifies || !longRunning(r, info) || identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		payer := identity.PayerFrom(r.Context())
		if err := h.take(cluster.Name, payer, least); err != nil {
			refuse(w, r, err.Error())
			return
		}
		c := &counter{ResponseWriter: w, CloseNotifierFlusher: inner, largest: least, grow: func(by int) error { return h.take(cluster.Name, payer, by) }}
		defer func() { h.give(cluster.Name, payer, c.largest) }()
		next.ServeHTTP(c, r)
	})
}

// counter is the answer to a watch.
type counter struct {
	http.ResponseWriter
	responsewriter.CloseNotifierFlusher

	// largest is what is counted for the largest event; grow fails unless it may be
	// more by that much.
	largest int
	grow    func(by int) error
}

// Write implements http.ResponseWriter. An event is one write.
func (c *counter) Write(p []byte) (int, error) {
	if len(p) > c.largest {
		if err := c.grow(len(p) - c.largest); err != nil {
			return 0, err
		}
		c.largest = len(p)
	}
	return c.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker, for watches over websockets.
func (c *counter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(c.ResponseWriter).Hijack()
}

// Unwrap is for http.ResponseController.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
