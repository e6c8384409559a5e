// Package watchbytes limits the memory of large watch events of each logical cluster and user. Each watch has
// buffers of the size of its largest event as long as it lasts, because encoders reuse them.
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

const least = 64 << 10

// Wrap returns the filter that limits watches of logical clusters. Watches of the installation's
// own components are not limited.
func Wrap(next http.Handler, held *ledger.Ledger, longRunning apirequest.LongRunningRequestCheck, refuse ledger.Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		holder := ledger.HolderOf(r.Context())
		// All HTTP servers implement it, but not all recorders in tests.
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

type counter struct {
	http.ResponseWriter
	responsewriter.CloseNotifierFlusher
	largest int                // the counted size of the largest event
	grow    func(by int) error // counts more bytes
}

func (c *counter) Write(p []byte) (int, error) {
	if len(p) > c.largest {
		if err := c.grow(len(p) - c.largest); err != nil {
			return 0, err
		}
		c.largest = len(p)
	}
	return c.ResponseWriter.Write(p)
}

func (c *counter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(c.ResponseWriter).Hijack()
}

func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
