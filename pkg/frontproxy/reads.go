package frontproxy

import (
	"net/http"
	"sync/atomic"

	"golang.org/x/time/rate"
)

const (
	// maxReads is how many requests at a time have connections to a shard of their own, and
	// so how many such connections there are.
	maxReads = 64
	// readDials is how many of these may be made in a second, when maxReads have been.
	readDials = 4
)

// reads says which requests go to a shard by HTTP/1.1. One costs both servers less there than
// as a stream of HTTP/2: no goroutines hand its parts to each other. Only short reads go so,
// since those can be sent again when the shard has just closed the connection. Whoever leaves
// before the answer is complete has the connection closed, and the next one costs a handshake:
// where that happens often, and where there are more reads, HTTP/2 takes them.
type reads struct {
	running atomic.Int64
	dials   *rate.Limiter
}

func newReads() *reads { return &reads{dials: rate.NewLimiter(readDials, maxReads)} }

// enter reports whether a request may have a connection of its own. Then leave follows it.
func (r *reads) enter(req *http.Request) bool {
	if req.Method != http.MethodGet || req.ContentLength != 0 || r.dials.Tokens() < 1 {
		return false
	}
	if r.running.Add(1) > maxReads {
		r.leave()
		return false
	}
	return true
}

func (r *reads) leave() { r.running.Add(-1) }

// connected notes whether a request's connection had to be made.
func (r *reads) connected(reused bool) {
	if !reused {
		r.dials.Allow()
	}
}
