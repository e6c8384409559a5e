// Package watchbytes bounds what the watches of one logical cluster hold of large
// events: each keeps buffers of the size of its largest one for as long as it lasts,
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

// errFull ends a watch.
var errFull = errors.New("the watches of this logical cluster hold too much of large events, see --max-watch-bytes-per-cluster")

// Limits bound the watches of a server.
type Limits struct {
	// Cluster bounds the sum of the largest events of the watches of one logical
	// cluster, in bytes, each of 64 KiB at least; 0 bounds nothing.
	Cluster int64
}

// NewLimits returns the defaults.
func NewLimits() Limits { return Limits{Cluster: 1 << 30} }

// AddFlags adds the flags of l to fs.
func (l *Limits) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&l.Cluster, "max-watch-bytes-per-cluster", l.Cluster, "bytes of the largest events of the open watches of one logical cluster together, each counted as 64 KiB at least: a watch with an event that exceeds that ends, and new ones are answered with 429. 0 means any number")
}

// Validate returns what is wrong with l.
func (l *Limits) Validate() []error {
	if l.Cluster < 0 {
		return []error{errors.New("--max-watch-bytes-per-cluster must not be negative")}
	}
	return nil
}

// Wrap returns next for watches within the limits. Those of the installation's own
// components have none.
func (l Limits) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck, refuse inflight.Refuse) http.Handler {
	held := budget.New[logicalcluster.Name](budget.Limits{Total: math.MaxInt64, Each: l.Cluster})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		cluster, _ := request.ClusterFrom(r.Context())
		// All servers of HTTP notify; recorders of tests need not.
		inner, notifies := w.(responsewriter.CloseNotifierFlusher)
		if l.Cluster == 0 || !ok || cluster.Name == "" || !notifies || !longRunning(r, info) || identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		if !held.Take(cluster.Name, least) {
			refuse(w, r, errFull.Error())
			return
		}
		c := &counter{ResponseWriter: w, CloseNotifierFlusher: inner, largest: least, grow: func(by int) bool { return held.Take(cluster.Name, int64(by)) }}
		defer func() { held.Give(cluster.Name, int64(c.largest)) }()
		next.ServeHTTP(c, r)
	})
}

// counter is the answer to a watch.
type counter struct {
	http.ResponseWriter
	responsewriter.CloseNotifierFlusher

	// largest is what is counted for the largest event; grow reports whether it may be
	// more by that much.
	largest int
	grow    func(by int) bool
}

// Write implements http.ResponseWriter. An event is one write.
func (c *counter) Write(p []byte) (int, error) {
	if len(p) > c.largest {
		if !c.grow(len(p) - c.largest) {
			return 0, errFull
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
