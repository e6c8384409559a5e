// Package watchbytes bounds what the watches of one logical cluster, and those of one
// user, hold of large events: each keeps buffers of the size of its largest one for as long as it lasts,
// since encoders use them again.
package watchbytes

import (
	"bufio"
	"net"
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// least is what a watch counts whose events are smaller, in bytes.
const least = 64 << 10

// Wrap returns next for watches of logical clusters within the limits of held. Those of the
// installation's own components have none.
func Wrap(next http.Handler, held *ledger.Ledger, longRunning apirequest.LongRunningRequestCheck, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		holder := ledger.HolderOf(r.Context())
		// All servers of HTTP notify; recorders of tests need not.
		inner, notifies := w.(responsewriter.CloseNotifierFlusher)
		if !ok || holder.Cluster == "" || !notifies || !longRunning(r, info) || identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		if err := held.Take(holder, least); err != nil {
			refuse(w, r, err.Error())
			return
		}
		c := &counter{ResponseWriter: w, CloseNotifierFlusher: inner, largest: least, grow: func(by int) error { return held.Take(holder, int64(by)) }}
		defer func() { held.Give(holder, int64(c.largest)) }()
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
