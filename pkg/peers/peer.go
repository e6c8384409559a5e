// Package peers maintains the book of the shards: their names, addresses and availability. Shards and front-proxies
// keep one each.
//
//	Shard objects of root ──► Book ──► Peer: clients of one shard at one address,
//	                            │            with a shared circuit breaker
//	                            └────► followers, for as long as the shard is registered
//
// If a Shard object is deleted or its address changes, its followers end and its connections are closed.
package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// closeDelay is the time in which a canceled stream ends.
const closeDelay = time.Second

// ErrUnreachable means that a shard does not respond or is not registered.
var ErrUnreachable = errors.New("the shard does not respond")

// Peer is a shard at one address. It is safe for concurrent use.
type Peer struct {
	// Name is the name of the shard, URL its address without a trailing slash.
	Name, URL string
	// Clients have read access to other shards.
	Clients *client.Factory

	breaker
	// removed is set when the book has removed the peer.
	removed atomic.Bool
}

// NewPeer returns a peer that is not part of a book.
func NewPeer(name string, clients *client.Factory) *Peer {
	return &Peer{Name: name, URL: clients.Host(), Clients: clients}
}

// Do makes one request, bounded by timeout. If the shard is unreachable, it returns ErrUnreachable, without a request
// if that is already known. Errors that the shard returned count as responses.
func (p *Peer) Do(ctx context.Context, timeout time.Duration, request func(context.Context) error) error {
	if !p.Allow() {
		return fmt.Errorf("%w: retrying shard %s soon", ErrUnreachable, p.Name)
	}
	observed := false
	defer func() {
		if !observed {
			p.Done()
		}
		p.Used(p.Clients.CloseIdleConnections)
	}()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := request(limited)
	responded := responded(err)
	if !responded && ctx.Err() != nil {
		return err
	}
	observed = true
	p.Observe(ctx, responded, err)
	if !responded {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// Observe records whether the shard responded to an allowed request, or else the reason, and logs changes.
func (p *Peer) Observe(ctx context.Context, responded bool, err error) {
	if responded && !p.open.Load() {
		return
	}
	p.mu.Lock()
	p.probing = false
	if !responded {
		p.until = time.Now().Add(OpenTimeout)
	}
	changed := p.open.Swap(!responded) == responded
	p.mu.Unlock()
	switch {
	case !changed:
	case responded:
		klog.FromContext(ctx).Info("Shard responds again", "shard", p.Name, "url", p.URL)
	default:
		klog.FromContext(ctx).Error(err, "Shard does not respond, retrying", "shard", p.Name, "url", p.URL)
	}
}

// Used must be called after each use of a peer. If the book has removed the peer in the meantime, it calls closeIdle,
// because the connections were not idle then.
func (p *Peer) Used(closeIdle func()) {
	if p.removed.Load() {
		Close(closeIdle)
	}
}

// Close closes idle connections, now and a moment later, because the last stream of an HTTP/2 connection outlasts its
// response or cancellation.
func Close(closeIdle func()) {
	closeIdle()
	time.AfterFunc(closeDelay, closeIdle)
}

// responded reports whether err is nil or was returned by the shard.
func responded(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && !apierrors.IsServiceUnavailable(err)
}

// OpenTimeout is the time for which requests to an unreachable shard are rejected.
const OpenTimeout = time.Second

// silentTimeout is how long an unreachable shard without requests is Silent. By then root has evaluated its heartbeats.
const silentTimeout = time.Minute

// breaker is a circuit breaker for requests to a shard. If closed, it costs one atomic load. It opens when a request
// fails; after a while, one request at a time probes whether the shard responds again.
type breaker struct {
	open atomic.Bool

	mu sync.Mutex
	// until is the time of the next probe. probing is set during a probe.
	until   time.Time
	probing bool
}

// Allow reports whether a request may be sent. If so, the caller must call Observe, or Done if the result is unknown.
func (b *breaker) Allow() bool {
	if !b.open.Load() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() && (b.probing || time.Now().Before(b.until)) {
		return false
	}
	b.probing = true
	return true
}

// Silent reports whether the shard has not responded lately, so that callers with a choice should use another shard.
// The probes are left to callers without a choice.
func (b *breaker) Silent() bool {
	if !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open.Load() && time.Since(b.until) < silentTimeout
}

// Done ends a request with an unknown result, e.g. because the caller has canceled it.
func (b *breaker) Done() {
	if !b.open.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}
